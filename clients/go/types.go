package offsetadapter

import (
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"

	"offset-adapter/clients/go/offsetspb"
)

const nameMax = 255 // bytes of UTF-8, see offsets.proto

// Group is a consumer group in a namespace.
type Group struct {
	Namespace string // empty: "default"
	Name      string
}

// String is namespace/name.
func (g Group) String() string { return g.full().Namespace + "/" + g.Name }

func (g Group) full() Group {
	if g.Namespace == "" {
		g.Namespace = "default"
	}
	return g
}

func (g Group) check() error {
	if g.Namespace != "" {
		if err := checkName(g.Namespace, "namespace"); err != nil {
			return err
		}
	}
	return checkName(g.Name, "group")
}

// Progress is the next offset to read of a shard, and what may be told beside it. Made by At, since an offset that is left out must
// not be 0.
type Progress struct {
	shard  string
	offset uint64

	// Epoch that was read with the offset, or that a later commit was raised to (Committed.Raised). With it, a commit that is in
	// flight cannot undo a reset. 0: unknown.
	Epoch uint64
	// Metadata of at most 4,096 bytes, kept with the offset.
	Metadata string
	// Topic and Partition travel to the Meta Service with the offset.
	Topic     string
	Partition uint32
	// Bounds of the log; lag is counted by them. nil: not told.
	Bounds *Bounds
}

// Bounds of the log of a shard.
type Bounds struct {
	Low  uint64 // the first readable offset
	High uint64 // the one that the next message will get
	// LogID tells which log they are of: any text that is another one when the log was made anew. Empty: not told.
	LogID string
}

// At says: every message of the shard below offset is done; the next one to read has this offset.
func At(shard string, offset uint64) Progress { return Progress{shard: shard, offset: offset} }

// InEpoch is the same progress with the epoch that was read.
func (p Progress) InEpoch(epoch uint64) Progress {
	p.Epoch = epoch
	return p
}

// Shard is the shard.
func (p Progress) Shard() string { return p.shard }

// Offset is the next offset to read.
func (p Progress) Offset() uint64 { return p.offset }

// isPlain tells whether it fits into the columns of a request.
func (p *Progress) isPlain() bool {
	return p.Metadata == "" && p.Topic == "" && p.Partition == 0 && p.Bounds == nil
}

// weight is about how much it takes of a request, in plain offsets.
func (p *Progress) weight() int {
	text := len(p.Metadata) + len(p.Topic)
	if p.Bounds != nil {
		text += len(p.Bounds.LogID)
	}
	return 1 + text/512
}

func (p *Progress) toProto() *offsetspb.ShardCommit {
	commit := &offsetspb.ShardCommit{
		Shard: p.shard, Offset: &p.offset, Epoch: p.Epoch, Metadata: p.Metadata, Topic: p.Topic, Partition: p.Partition,
	}
	if p.Bounds != nil {
		commit.LowWatermark, commit.HighWatermark, commit.LogId = &p.Bounds.Low, &p.Bounds.High, p.Bounds.LogID
	}
	return commit
}

// Member commits for a group, for fencing: a commit of a generation below the group's newest is refused with a FencedError.
type Member struct {
	Generation uint64 // as in Kafka: it grows with each rebalance
	ID         string // shown in errors and by `offset-adapter groups describe`; may be empty
}

// Commit is the offsets of one group, which are durable together.
type Commit struct {
	Group   Group
	Offsets []Progress
	// Member, if not nil: refused when a newer generation of the group has committed.
	Member *Member
	// Overwrite: a lower offset is a rewind, stored under the next epoch. Without this it changes nothing.
	Overwrite bool
}

// CommitOf is a commit that only increases.
func CommitOf(group Group, offsets ...Progress) Commit { return Commit{Group: group, Offsets: offsets} }

// check refuses here what would be refused anyway, where it does not make other commits wait that share its request.
func (c *Commit) check() error {
	if err := c.Group.check(); err != nil {
		return err
	}
	if len(c.Offsets) == 0 {
		return invalid("shards", "no offset is in the commit; at least one is needed")
	}
	var seen map[string]struct{}
	if len(c.Offsets) > 1 {
		seen = make(map[string]struct{}, len(c.Offsets))
	}
	for at := range c.Offsets {
		shard := c.Offsets[at].shard
		if err := checkName(shard, fmt.Sprintf("shards[%d].shard", at)); err != nil {
			return err
		}
		if _, twice := seen[shard]; twice {
			return invalid(fmt.Sprintf("shards[%d].shard", at), fmt.Sprintf("%q is in the commit twice", shard))
		}
		if seen != nil {
			seen[shard] = struct{}{}
		}
	}
	return nil
}

// Committed is what a durable commit did.
type Committed struct {
	// Behind: shards of which a larger offset was stored already: this commit came late, or repeats an earlier one. Nothing is lost.
	Behind []Stands
	// Raised: shard -> the new epoch in which it was stored: a rewind, or the first commit after a reset. Name it in the next commits
	// of the shard.
	Raised map[string]uint64
}

// Stands is the offset in the place of one that was committed late.
type Stands struct {
	Shard  string
	Offset uint64
	Epoch  uint64
}

// Moved is a shard that somebody else moved.
type Moved struct {
	Shard   string
	Offset  uint64 // what stands now; without a meaning if Deleted
	Deleted bool   // nothing stands: absent, which is not 0
	Epoch   uint64 // a commit that names it is taken
	Held    bool   // nobody has taken up the reset: a commit without an epoch changes nothing
}

// Stored is a stored offset.
type Stored struct {
	Offset      uint64 // the next one to read
	Epoch       uint64 // commit with it
	Metadata    string // what was committed with the offset
	CommittedAt uint64 // Unix time in milliseconds
	Topic       string // and Partition, where they were told
	Partition   uint32
	Held        bool // a reset is not taken up
}

// Shards says which shards of a group are meant. Its zero value, and a Named list that is empty by mistake, are refused, instead of
// meaning all.
type Shards struct {
	all   bool
	names []string
}

// All is every shard of the group that has an offset.
func All() Shards { return Shards{all: true} }

// Named is these shards, at least one.
func Named(names ...string) Shards { return Shards{names: slices.Clone(names)} }

func (s Shards) of(group Group) (*offsetspb.GroupShards, error) {
	if err := group.check(); err != nil {
		return nil, err
	}
	if !s.all && len(s.names) == 0 {
		return nil, invalid("shards", "none is named; for every shard of the group say All()")
	}
	for at, name := range s.names {
		if err := checkName(name, fmt.Sprintf("shards[%d]", at)); err != nil {
			return nil, err
		}
	}
	return &offsetspb.GroupShards{Namespace: group.full().Namespace, Group: group.Name, Shards: s.names}, nil
}

func checkName(name, field string) error {
	switch {
	case name == "":
		return invalid(field, "is empty")
	case len(name) > nameMax:
		return invalid(field, fmt.Sprintf("%.20q... is longer than %d bytes", name, nameMax))
	case !utf8.ValidString(name):
		return invalid(field, fmt.Sprintf("%q is not UTF-8", name))
	}
	for _, char := range name {
		if unicode.IsControl(char) {
			return invalid(field, fmt.Sprintf("%q has a control character", name))
		}
	}
	return nil
}
