package main

import (
	"hash/maphash"
	"slices"

	"github.com/anishathalye/porcupine"
)

// The register of one key in several places (an adapter, the Meta Service). Each place is a max-register of its own: a commit is
// in a place when the place has acknowledged it. What somebody began to write may come to any place at any time from then on: by
// the commit itself, whose answer got lost, or by a copy from another place. The plain model has a write without an end for each
// such value and place. That is the definition, but it has too many orders for more than a few writes. In the other one a read
// takes a larger value of those that were begun into the place, at the instant when it shows it: until somebody sees it, nothing
// depends on when it came.

const firstEpoch = 1 // what an unknown epoch becomes at an empty place

type kind int

const (
	begin kind = iota // somebody begins to write: an instant
	least             // a place has at least a value: an acknowledged write
	show              // a place shows a value, or nothing, and with a slot at least what is in it
	look              // what a place has is put into a slot: where a copy, or a read of two places, begins
	offer             // a value is put into a slot
	bring             // a place has at least what is in a slot: where a copy ends
)

// A step is an operation of Porcupine: one instant, one place.
type step struct {
	kind   kind
	place  int
	value  *value // nil: nothing was shown
	number int    // begin: of all begins of this key
	slot   int    // 0: none
}

// A filled slot: what a place had at that instant.
type filled struct {
	slot  int
	value value // of epoch 0 if there was nothing
}

// The state of all places. `slots` in the order of their numbers.
type state struct {
	begun  int
	places []value // of epoch 0 if there is nothing
	slots  []filled
}

// What was begun, in the order of the begins.
type begun struct {
	plain      bool           // see above: what was begun has operations of its own
	values     map[value]int  // the number of the first begin
	unplaced   map[uint64]int // offsets with an unknown epoch
	tombstones []filled       // with the number of the first begin; in the order of their values
	highest    []uint64       // the largest epoch of so many begins
}

func newBegun(plain bool) *begun {
	return &begun{plain, map[value]int{}, map[uint64]int{}, nil, []uint64{firstEpoch}}
}

func (b *begun) add(values []value) {
	number := len(b.highest) - 1
	highest := b.highest[number]
	for _, each := range values {
		if each.epoch == 0 {
			if _, known := b.unplaced[each.offset]; !known {
				b.unplaced[each.offset] = number
			}
			continue
		}
		highest = max(highest, each.epoch)
		if _, known := b.values[each]; known {
			continue
		}
		b.values[each] = number
		if !each.live {
			b.tombstones = append(b.tombstones, filled{number, each})
		}
	}
	b.highest = append(b.highest, highest)
	slices.SortFunc(b.tombstones, func(a, b filled) int { return a.value.compare(b.value) })
}

// mayShow tells whether somebody had begun to write this, of the first so many begins.
func (b *begun) mayShow(shown value, count int) bool {
	if number, known := b.values[shown]; known && number < count {
		return true
	}
	number, known := b.unplaced[shown.offset]
	return shown.live && known && number < count && shown.epoch <= b.highest[count]
}

// absence is the least that a place may have which shows nothing: that is a tombstone, or nothing.
func (b *begun) absence(from value, count int) (value, bool) {
	if !from.live {
		return from, true
	}
	for _, each := range b.tombstones {
		if each.slot < count && each.value.compare(from) >= 0 {
			return each.value, true
		}
	}
	return value{}, false
}

func (s state) apply(b *begun, next step) (bool, state) {
	switch next.kind {
	case begin:
		s.begun++
		return s.begun == next.number+1, s
	case look:
		return true, s.with(filled{next.slot, s.places[next.place]})
	case offer:
		return true, s.with(filled{next.slot, *next.value})
	case least:
		wanted := *next.value
		if wanted.epoch == 0 {
			wanted.epoch = max(s.places[next.place].epoch, firstEpoch)
		}
		return true, s.raised(next.place, wanted)
	}
	from := s.places[next.place]
	if next.slot != 0 {
		at := slices.IndexFunc(s.slots, func(each filled) bool { return each.slot == next.slot })
		if at < 0 {
			return false, s
		}
		from = larger(from, s.slots[at].value)
		s.slots = slices.Delete(slices.Clone(s.slots), at, at+1)
	}
	if next.kind == bring {
		return true, s.raised(next.place, from)
	}
	if b.plain {
		possible := next.value == nil && !from.live || next.value != nil && from == *next.value
		return possible, s.raised(next.place, from)
	}
	if next.value == nil {
		absent, possible := b.absence(from, s.begun)
		return possible, s.raised(next.place, absent)
	}
	shown := *next.value
	if shown.epoch == 0 {
		shown.epoch = firstEpoch
	}
	return shown.compare(from) >= 0 && b.mayShow(shown, s.begun), s.raised(next.place, shown)
}

func larger(a, b value) value {
	if a.compare(b) < 0 {
		return b
	}
	return a
}

func (s state) raised(place int, to value) state {
	if s.places[place].compare(to) < 0 {
		s.places = slices.Clone(s.places)
		s.places[place] = to
	}
	return s
}

func (s state) with(slot filled) state {
	at, _ := slices.BinarySearchFunc(s.slots, slot, func(a, b filled) int { return a.slot - b.slot })
	s.slots = slices.Insert(slices.Clone(s.slots), at, slot)
	return s
}

var seed = maphash.MakeSeed()

func (s state) hash() uint64 {
	var all maphash.Hash
	all.SetSeed(seed)
	maphash.WriteComparable(&all, s.begun)
	for _, each := range s.places {
		maphash.WriteComparable(&all, each)
	}
	for _, each := range s.slots {
		maphash.WriteComparable(&all, each)
	}
	return all.Sum64()
}

func (s state) equal(other state) bool {
	return s.begun == other.begun && slices.Equal(s.places, other.places) && slices.Equal(s.slots, other.slots)
}

// model is Porcupine's: of a key in so many places.
func model(places int, known *begun) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{places: make([]value, places)} },
		Step: func(now, input, _ any) (bool, any) { return now.(state).apply(known, input.(step)) },
		Hash: func(each any) uint64 { return each.(state).hash() },
		Equal: func(one, other any) bool {
			return one.(state).equal(other.(state))
		},
	}
}
