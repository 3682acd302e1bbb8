package offsetadapter

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"offset-adapter/clients/go/offsetspb"
)

const (
	maxShared         = 2     // shared requests in flight: the adapter works on one while the next is on the wire
	minSpread         = 32    // commits; more than that are spread evenly over the shared requests
	maxAlone          = 32    // requests of a single commit in flight
	maxWeight         = 2_048 // offsets of a shared request: with the longest names 2.7 of the 4 MiB that are allowed
	maxPending        = 8_192 // commits that are queued or in flight; beyond it, callers wait
	maxWrittenThrough = 4_096 // groups that are remembered

	isClosedText  = "the client is closed"
	notInTimeText = "not answered in time"
)

type shardOf struct {
	group Group
	shard string
}

// outcome is what of a reply concerns one commit, or why it failed.
type outcome struct {
	superseded []*offsetspb.Superseded
	raised     []*offsetspb.Raised
	err        error
}

type entry struct {
	commit   Commit
	shards   []shardOf
	weight   int
	ctx      context.Context // of the caller, which waits for no longer
	deadline time.Time
	answer   chan outcome
	alone    bool // sent in a request of its own
	lost     bool // its last request was lost: it waits for the end of the pause
}

// commits are the pending commits of a client: those that wait while requests are in flight share the next one.
//
// Of one shard, a commit is sent after those before it were answered. A request that is refused is divided, so that a refusal reaches
// only the commit that it concerns. One that is lost is sent again until the deadline of its commits; with OVERWRITE it is alone in
// its request, and sent once.
type commits struct {
	service offsetspb.OffsetStoreClient
	slots   chan struct{} // one is taken by each pending commit

	mutex          sync.Mutex
	queue          []*entry
	shared, alone  int                  // requests in flight
	underway       int                  // commits in the shared ones
	waitingAlone   int                  // entries of the queue that are sent in requests of their own
	busy           map[shardOf]struct{} // shards of requests in flight
	writtenThrough map[Group]struct{}   // their commits wait for the Meta Service: others should not wait with them
	pauses         pauses
	isPaused       bool
	isWoken        bool // dispatch runs, or will
	isClosed       bool
}

func newCommits(service offsetspb.OffsetStoreClient) *commits {
	return &commits{
		service: service, slots: make(chan struct{}, maxPending),
		busy: map[shardOf]struct{}{}, writtenThrough: map[Group]struct{}{},
	}
}

func (c *commits) commit(ctx context.Context, commit Commit) (Committed, error) {
	if err := commit.check(); err != nil {
		return Committed{}, err
	}
	mine := newEntry(ctx, commit)
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return Committed{}, &LostError{Message: "not answered in time: too many commits wait", cause: ctx.Err()}
	}
	c.add(mine)
	var found outcome
	select {
	case found = <-mine.answer:
	case <-ctx.Done():
		select {
		case found = <-mine.answer:
		default:
			return Committed{}, &LostError{Message: notInTimeText, cause: ctx.Err()}
		}
	}
	if found.err != nil {
		return Committed{}, found.err
	}
	return judge(found, commit.Offsets)
}

func newEntry(ctx context.Context, commit Commit) *entry {
	commit.Group = commit.Group.full()
	commit.Offsets = slices.Clone(commit.Offsets) // the caller may go away, and use its slice for something else
	made := &entry{
		commit: commit, shards: make([]shardOf, len(commit.Offsets)), ctx: ctx, answer: make(chan outcome, 1), alone: commit.Overwrite,
	}
	if commit.Member != nil {
		member := *commit.Member
		made.commit.Member = &member
	}
	made.deadline, _ = ctx.Deadline()
	for at := range commit.Offsets {
		made.shards[at] = shardOf{commit.Group, commit.Offsets[at].shard}
		made.weight += commit.Offsets[at].weight()
	}
	return made
}

// judge: a shard that somebody moved is an error. One of which more is stored already, in the epoch of the commit, is not.
func judge(found outcome, sent []Progress) (Committed, error) {
	var done Committed
	var moved []Moved
	for _, row := range found.superseded {
		at := slices.IndexFunc(sent, func(progress Progress) bool { return progress.shard == row.Shard })
		offset, epoch := sent[at].offset, sent[at].Epoch
		if row.Held || row.Deleted || row.Offset < offset || (epoch != 0 && row.Epoch > takenUp(epoch)) {
			moved = append(moved, Moved{row.Shard, row.Offset, row.Deleted, row.Epoch, row.Held})
		} else {
			done.Behind = append(done.Behind, Stands{row.Shard, row.Offset, row.Epoch})
		}
	}
	if moved != nil {
		return Committed{}, &MovedError{moved}
	}
	for _, row := range found.raised {
		if done.Raised == nil {
			done.Raised = map[string]uint64{}
		}
		done.Raised[row.Shard] = row.Epoch
	}
	return done, nil
}

// takenUp: a reset's epoch, whose lower half is 0, and the one behind its hold are one to a consumer that read either.
func takenUp(epoch uint64) uint64 {
	if uint32(epoch) == 0 {
		return epoch + 1
	}
	return epoch
}

func (c *commits) add(mine *entry) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.isClosed {
		c.finish(mine, outcome{err: &LostError{Message: isClosedText}})
		return
	}
	c.queue = append(c.queue, mine)
	if mine.alone {
		c.waitingAlone++
	}
	c.wake()
}

func (c *commits) close() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.isClosed = true
	for _, waiting := range c.queue {
		c.finish(waiting, outcome{err: &LostError{Message: isClosedText}})
	}
	c.queue, c.waitingAlone = nil, 0
}

// finish a commit, whether or not somebody waits for it.
func (c *commits) finish(done *entry, found outcome) {
	<-c.slots
	done.answer <- found
}

// left the queue.
func (c *commits) left(gone *entry) {
	if gone.alone {
		c.waitingAlone--
	}
}

// wake lets dispatch run soon, once for all that happens until then.
func (c *commits) wake() {
	if !c.isWoken && (c.maySendShared() || c.maySendAlone()) {
		c.isWoken = true
		go c.dispatch()
	}
}

func (c *commits) dispatch() {
	// Behind every goroutine that can run now: those that were answered together commit again together.
	runtime.Gosched()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.isWoken = false
	for {
		chosen, alone := c.nextRequest()
		if chosen == nil {
			return
		}
		c.send(chosen, alone)
	}
}

// maySendShared tells whether a shared request may be sent now. Beside another one it has to be about as large: a request costs the
// adapter much more than a commit in it, and those that were answered together commit again together.
func (c *commits) maySendShared() bool {
	return c.shared == 0 || (c.shared < maxShared && 4*len(c.queue) >= 3*c.underway)
}

func (c *commits) maySendAlone() bool {
	return c.alone < maxAlone && (c.waitingAlone > 0 || len(c.writtenThrough) > 0)
}

// nextRequest takes the commits of the next request out of the queue, and tells whether it is one of its own; nil if no more may be
// sent now.
func (c *commits) nextRequest() ([]*entry, bool) {
	maySendShared := c.maySendShared()
	if !maySendShared && !c.maySendAlone() {
		return nil, false
	}
	most := max(minSpread, (len(c.queue)+c.underway)/maxShared)
	var chosen, stay []*entry
	members := map[Group]*Member{}
	taken := map[shardOf]struct{}{} // no later commit of them is in the request, and none overtakes one that stays in the queue
	weight := 0
	for at, next := range c.queue {
		if err := next.ctx.Err(); err != nil { // its caller goes away, or is about to look for an answer
			c.left(next)
			c.finish(next, outcome{err: &LostError{Message: notInTimeText, cause: err}})
			continue
		}
		_, isWrittenThrough := c.writtenThrough[next.commit.Group]
		alone := next.alone || isWrittenThrough
		var fits bool
		switch member, isChosen := members[next.commit.Group]; {
		case next.lost && c.isPaused:
		case alone:
			fits = len(chosen) == 0 && c.alone < maxAlone
		case len(chosen) == 0:
			fits = maySendShared
		default:
			fits = weight+next.weight <= maxWeight && (!isChosen || sameMember(member, next.commit.Member))
		}
		if !fits || isAnyIn(next.shards, c.busy) || isAnyIn(next.shards, taken) {
			take(taken, next.shards)
			stay = append(stay, next)
			continue
		}
		take(taken, next.shards)
		c.left(next)
		weight += next.weight
		members[next.commit.Group] = next.commit.Member
		chosen = append(chosen, next)
		if alone || len(chosen) == most || weight >= maxWeight {
			c.queue = append(stay, c.queue[at+1:]...)
			return chosen, alone
		}
	}
	c.queue = stay
	return chosen, false
}

func sameMember(one, other *Member) bool {
	if one == nil || other == nil {
		return one == other
	}
	return *one == *other
}

func take(set map[shardOf]struct{}, shards []shardOf) {
	for _, shard := range shards {
		set[shard] = struct{}{}
	}
}

func isAnyIn(shards []shardOf, set map[shardOf]struct{}) bool {
	for _, shard := range shards {
		if _, isIn := set[shard]; isIn {
			return true
		}
	}
	return false
}

func (c *commits) send(chosen []*entry, alone bool) {
	c.count(alone, len(chosen), 1)
	deadline := time.Time{}
	for _, each := range chosen {
		take(c.busy, each.shards)
		if each.deadline.After(deadline) {
			deadline = each.deadline
		}
	}
	go func() {
		// Not of one caller: when that goes away, the others wait on. Without a deadline, which would be another header in each request:
		// the adapter decodes anew what is not as in the one before.
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		defer time.AfterFunc(time.Until(deadline), cancel).Stop()
		var trailer metadata.MD
		reply, err := c.service.CommitOffsets(ctx, requestOf(chosen), grpc.Trailer(&trailer))
		if err != nil && ctx.Err() != nil {
			err = status.Error(codes.DeadlineExceeded, notInTimeText)
		}
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.count(alone, len(chosen), -1)
		for _, each := range chosen {
			for _, shard := range each.shards {
				delete(c.busy, shard)
			}
		}
		if err == nil {
			c.answered(chosen, reply)
		} else {
			c.failed(chosen, err, trailer)
		}
		if len(c.queue) > 0 {
			c.wake()
		}
	}()
}

// count a request that begins (1) or ends (-1).
func (c *commits) count(alone bool, commits, change int) {
	if alone {
		c.alone += change
	} else {
		c.shared += change
		c.underway += change * commits
	}
}

func (c *commits) answered(chosen []*entry, reply *offsetspb.CommitOffsetsReply) {
	c.noteWrittenThrough(chosen, reply.WrittenThrough)
	outcomes := make([]outcome, len(chosen))
	if len(reply.Superseded)+len(reply.Raised) > 0 {
		places := map[shardOf]int{}
		for at, each := range chosen {
			for _, shard := range each.shards {
				places[shard] = at
			}
		}
		for _, row := range reply.Superseded {
			if at, isOurs := places[shardOf{Group{row.Namespace, row.Group}, row.Shard}]; isOurs {
				outcomes[at].superseded = append(outcomes[at].superseded, row)
			}
		}
		for _, row := range reply.Raised {
			if at, isOurs := places[shardOf{Group{row.Namespace, row.Group}, row.Shard}]; isOurs {
				outcomes[at].raised = append(outcomes[at].raised, row)
			}
		}
	}
	for at, each := range chosen {
		if each.lost {
			c.pauses.forget()
		}
		c.finish(each, outcomes[at])
	}
}

func (c *commits) noteWrittenThrough(chosen []*entry, indexes []uint32) {
	if len(indexes) == 0 {
		return
	}
	if len(c.writtenThrough) > maxWrittenThrough {
		clear(c.writtenThrough)
	}
	var groups []Group // in the order of the request
	seen := map[Group]struct{}{}
	for _, each := range chosen {
		if _, isSeen := seen[each.commit.Group]; !isSeen {
			seen[each.commit.Group] = struct{}{}
			groups = append(groups, each.commit.Group)
		}
	}
	for _, at := range indexes {
		if int(at) < len(groups) {
			c.writtenThrough[groups[at]] = struct{}{}
		}
	}
}

func (c *commits) failed(chosen []*entry, err error, trailer metadata.MD) {
	problem := fromStatus(err, trailer)
	isLost := isLost(problem)
	again := make([]*entry, 0, len(chosen))
	for _, each := range chosen {
		var repeats bool
		if isLost {
			repeats = !c.isClosed && !each.commit.Overwrite && each.ctx.Err() == nil
		} else {
			repeats = len(chosen) > 1 && !isCommon(err) && !c.isClosed
		}
		if !repeats {
			c.finish(each, outcome{err: problem})
			continue
		}
		each.alone = true
		each.lost = each.lost || isLost
		again = append(again, each)
	}
	if len(again) == 0 {
		return
	}
	c.waitingAlone += len(again)
	c.queue = append(again, c.queue...)
	if isLost && !c.isPaused {
		c.isPaused = true
		time.AfterFunc(c.pauses.next(), func() {
			c.mutex.Lock()
			defer c.mutex.Unlock()
			c.isPaused = false
			c.wake()
		})
	}
}

// requestOf has one GroupCommits for each group, in the order in which groups first occur.
func requestOf(chosen []*entry) *offsetspb.CommitOffsetsRequest {
	request := &offsetspb.CommitOffsetsRequest{}
	places := map[Group]*offsetspb.GroupCommits{}
	for _, each := range chosen {
		commit := &each.commit
		group := places[commit.Group]
		if group == nil {
			group = &offsetspb.GroupCommits{Namespace: commit.Group.Namespace, Group: commit.Group.Name}
			if commit.Member != nil {
				group.MemberId, group.Generation = commit.Member.ID, &commit.Member.Generation
			}
			places[commit.Group] = group
			request.Groups = append(request.Groups, group)
		}
		for at := range commit.Offsets {
			progress := &commit.Offsets[at]
			if progress.isPlain() {
				group.ShardNames = append(group.ShardNames, progress.shard)
				group.Offsets = append(group.Offsets, progress.offset)
				group.Epochs = append(group.Epochs, progress.Epoch)
			} else {
				group.Shards = append(group.Shards, progress.toProto())
			}
		}
		if commit.Overwrite {
			request.Mode = offsetspb.CommitMode_OVERWRITE
		}
	}
	for _, group := range request.Groups {
		if !slices.ContainsFunc(group.Epochs, func(epoch uint64) bool { return epoch != 0 }) {
			group.Epochs = nil
		}
	}
	return request
}
