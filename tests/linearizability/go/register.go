package main

import (
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A register is the history of one key, as Porcupine's operations.
type register struct {
	places     map[string]int
	known      *begun
	operations []porcupine.Operation
	slots      int
}

// newRegister takes what a history says of one key. Porcupine's times are whole numbers: the ranks of the instants.
func newRegister(history []operation, of key, rank map[float64]int64, plain bool) *register {
	r := &register{places: map[string]int{}, known: newBegun(plain)}
	for _, each := range history {
		for _, place := range each.Places {
			r.place(place)
		}
	}
	begins := slices.Clone(history)
	slices.SortStableFunc(begins, func(a, b operation) int { return int(rank[a.Began] - rank[b.Began]) })
	number := 0
	for _, each := range begins {
		if each.What != "write" || each.Keys[0] != of {
			continue
		}
		if plain {
			r.unasked(rank[each.Began], int64(len(rank)), each)
			continue
		}
		r.add(rank[each.Began], rank[each.Began], step{kind: begin, number: number})
		r.known.add(each.Values)
		number++
	}
	for _, each := range history {
		if each.Ended == nil {
			continue
		}
		from, to := rank[each.Began], rank[*each.Ended]
		switch {
		case each.What == "carry":
			slot := r.slot()
			r.add(from, to, step{kind: look, place: r.place(each.Places[0]), slot: slot})
			r.add(from, to, step{kind: bring, place: r.place(each.Places[1]), slot: slot})
		case each.What == "read" && (each.Keys == nil || slices.Contains(each.Keys, of)):
			r.read(from, to, each, of)
		case each.What == "write" && each.Keys[0] == of:
			r.acknowledged(from, to, each)
		}
	}
	return r
}

// unasked: each of the values may come to every place from now on, and need not.
func (r *register) unasked(from, never int64, write operation) {
	for _, each := range write.Values {
		for place := range len(r.places) {
			r.add(from, never, step{kind: least, place: place, value: &each})
		}
	}
}

// read: what its first place shows is at least what every other one had at some instant of it.
func (r *register) read(from, to int64, read operation, of key) {
	var shown *value
	for _, each := range read.Found {
		if each.key == of {
			shown = &each.value
		}
	}
	slot := 0
	if len(read.Places) > 1 {
		slot = r.slot()
		r.add(from, to, step{kind: look, place: r.place(read.Places[1]), slot: slot})
	}
	r.add(from, to, step{kind: show, place: r.place(read.Places[0]), value: shown, slot: slot})
}

// acknowledged: each place has at least the least of its values, or the one that it told, or what it told as larger.
func (r *register) acknowledged(from, to int64, write operation) {
	lowest := slices.MinFunc(write.Values, value.compare)
	if write.Told != nil {
		lowest = *write.Told
	}
	for at, name := range write.Places {
		place := r.place(name)
		if write.Standing == nil {
			r.add(from, to, step{kind: least, place: place, value: &lowest})
			continue
		}
		if at == 0 {
			// That what stands is not below what was to be written.
			own := lowest
			own.epoch = max(own.epoch, firstEpoch)
			slot := r.slot()
			r.add(from, to, step{kind: offer, slot: slot, value: &own})
			r.add(from, to, step{kind: show, place: place, value: write.Standing, slot: slot})
			continue
		}
		r.add(from, to, step{kind: show, place: place, value: write.Standing})
	}
}

func (r *register) add(from, to int64, each step) {
	r.operations = append(r.operations, porcupine.Operation{Input: each, Call: from, Return: to})
}

func (r *register) place(name string) int {
	place, known := r.places[name]
	if !known {
		place = len(r.places)
		r.places[name] = place
	}
	return place
}

func (r *register) slot() int {
	r.slots++
	return r.slots
}

func (r *register) check(timeout time.Duration) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model(len(r.places), r.known), r.operations, timeout)
}
