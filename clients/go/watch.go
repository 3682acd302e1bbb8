package offsetadapter

import (
	"context"
	"iter"
	"time"

	"offset-adapter/clients/go/offsetspb"
)

// Change is what a watch tells: a Disconnected, Resync, Changed or Removed.
type Change interface{ change() }

// Disconnected: nothing is heard until the next Resync, which comes when there is a connection again. Until then an offset that is
// cached may be an old one.
type Disconnected struct{}

// Resync: from now on every change is told; what was changed before may have been missed. Forget every offset that is cached, and
// read again where consumers stand.
type Resync struct{}

// Changed: a shard was reset, cloned onto, imported, rewound, deleted, or taken from the Meta Service.
type Changed struct {
	Group   Group
	Shard   string
	Offset  uint64 // what stands; without a meaning if Deleted
	Deleted bool
	Epoch   uint64 // what a cache has with a larger (epoch, offset) is newer than this
	Held    bool   // nobody has taken up the reset
}

// Removed: shards that are no longer at this adapter: handed over, or expired.
type Removed struct {
	Group  Group
	Shards []string // empty: all of the group
}

func (Disconnected) change() {}
func (Resync) change()       {}
func (Changed) change()      {}
func (Removed) change()      {}

// Watch hears of changes that did not come as ordinary commits, of all groups, until the context ends. It connects again by itself.
//
//	for change, err := range client.Watch(ctx) { ... }
//
// The first one is a Resync. An error is the last thing that it tells: what ended the context, or what a further attempt does not
// mend, such as a RefusedError by an adapter that cannot be watched.
func (c *Client) Watch(ctx context.Context) iter.Seq2[Change, error] {
	return c.watch(ctx, &offsetspb.WatchOffsetsRequest{})
}

// WatchGroup is a Watch of one group.
func (c *Client) WatchGroup(ctx context.Context, group Group) iter.Seq2[Change, error] {
	return c.watch(ctx, &offsetspb.WatchOffsetsRequest{Namespace: group.full().Namespace, Group: group.Name})
}

func (c *Client) watch(ctx context.Context, filter *offsetspb.WatchOffsetsRequest) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		attempts := pauses{}
		for {
			goesOn, err := c.watchOnce(ctx, filter, &attempts, yield)
			if !goesOn {
				return
			}
			switch problem := fromStatus(err, nil); {
			case ctx.Err() != nil:
				yield(nil, ctx.Err())
				return
			case !Retryable(problem) || c.isClosed():
				yield(nil, problem)
				return
			}
			select {
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			case <-time.After(attempts.next()):
			}
		}
	}
}

// watchOnce makes one call, and tells what it hears until that ends. It returns false when the caller wants to hear no more.
func (c *Client) watchOnce(
	ctx context.Context, filter *offsetspb.WatchOffsetsRequest, attempts *pauses, yield func(Change, error) bool,
) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.service.WatchOffsets(ctx, filter)
	if err != nil {
		return true, err
	}
	for isHeard := false; ; isHeard = true {
		reply, err := stream.Recv()
		if err != nil {
			return !isHeard || yield(Disconnected{}, nil), err // io.EOF: also an end without an error is begun anew
		}
		attempts.forget()
		for change := range changesOf(reply) {
			if !yield(change, nil) {
				return false, nil
			}
		}
	}
}

func changesOf(reply *offsetspb.WatchOffsetsReply) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		if reply.Resync && !yield(Resync{}) {
			return
		}
		for _, row := range reply.Changed {
			group := Group{Namespace: row.Namespace, Name: row.Group}
			if !yield(Changed{group, row.Shard, row.Offset, row.Deleted, row.Epoch, row.Held}) {
				return
			}
		}
		for _, row := range reply.Removed {
			if !yield(Removed{Group{Namespace: row.Namespace, Name: row.Group}, row.Shards}) {
				return
			}
		}
	}
}
