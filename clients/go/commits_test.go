package offsetadapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"offset-adapter/clients/go/offsetspb"
)

var billing = Group{Name: "billing"}

func of(group, shard string, offset uint64) Commit {
	return CommitOf(Group{Name: group}, At(shard, offset))
}

// occupied is a client of which both shared requests are in flight, so that what comes next waits.
func occupied(t *testing.T, fake *fakeAdapter, client *Client) (one, two *pending) {
	t.Helper()
	begin(t, t.Context(), client, of("first", "s", 1))
	one = fake.next(t)
	begin(t, t.Context(), client, of("second", "s", 1))
	return one, fake.next(t)
}

func TestCommitsThatWaitShareTheNextRequestAndEachIsAnswered(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	one, _ := occupied(t, fake, client)
	var waiting []<-chan result
	for at := range minSpread {
		waiting = append(waiting, begin(t, t.Context(), client, of(fmt.Sprint("g", at%8), fmt.Sprint(at), uint64(at))))
	}
	one.done()
	shared := fake.next(t)
	if len(shared.offsets()) != minSpread || len(shared.Groups) != 8 {
		t.Fatalf("%d commits in %d groups", len(shared.offsets()), len(shared.Groups))
	}
	shared.answer <- answer{reply: &offsetspb.CommitOffsetsReply{
		Superseded: []*offsetspb.Superseded{{Namespace: "default", Group: "g3", Shard: "3", Offset: 7, Epoch: 1}},
		Raised:     []*offsetspb.Raised{{Namespace: "default", Group: "g5", Shard: "5", Epoch: 9}},
	}}
	for at, each := range waiting {
		found := answerOf(t, each)
		if found.err != nil || (len(found.done.Behind) == 1) != (at == 3) || (found.done.Raised["5"] == 9) != (at == 5) {
			t.Errorf("%d: %+v", at, found)
		}
	}
}

func TestManyCommitsAreSpreadEvenlyOverTheRequestsInFlight(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	one, two := occupied(t, fake, client)
	var waiting []<-chan result
	for at := range 99 {
		waiting = append(waiting, begin(t, t.Context(), client, of("g", fmt.Sprint(at), 1)))
	}
	one.done()
	first := fake.next(t)
	two.done()
	second := fake.next(t)
	if len(first.offsets()) != 50 || len(second.offsets()) != 49 {
		t.Fatalf("%d and %d commits", len(first.offsets()), len(second.offsets()))
	}
	first.done()
	for at := range 50 {
		answerOf(t, waiting[at])
	}
	begin(t, t.Context(), client, of("g", "one more", 1))
	alone := of("h", "s", 1)
	alone.Overwrite = true
	begin(t, t.Context(), client, alone)
	if next := fake.next(t); next.Mode != offsetspb.CommitMode_OVERWRITE {
		t.Fatalf("one commit was sent beside 49, which other answers would have joined: %v", next.offsets())
	}
	second.done()
	if next := fake.next(t); !maps.Equal(next.offsets(), map[string]uint64{"g one more": 1}) {
		t.Fatalf("sent: %v", next.offsets())
	}
}

func TestCommitsOfOneShardAreSentOneAfterTheOther(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	begin(t, t.Context(), client, of("g", "s", 1))
	first := fake.next(t)
	second := begin(t, t.Context(), client, CommitOf(Group{Name: "g"}, At("s", 2), At("other", 1)))
	third := begin(t, t.Context(), client, of("g", "other", 3))
	begin(t, t.Context(), client, of("g", "free", 1))
	if free := fake.next(t); !maps.Equal(free.offsets(), map[string]uint64{"g free": 1}) {
		t.Fatalf("sent before its turn: %v", free.offsets())
	}
	first.done()
	next := fake.next(t)
	if !maps.Equal(next.offsets(), map[string]uint64{"g s": 2, "g other": 1}) {
		t.Fatalf("out of order: %v", next.offsets())
	}
	next.done()
	fake.next(t).done()
	if took := []error{answerOf(t, second).err, answerOf(t, third).err}; took[0] != nil || took[1] != nil {
		t.Fatal(took)
	}
}

// Its caller may look for the answer only now: it must not be told as done.
func TestACommitThatIsTakenFromTheQueueTooLateIsLost(t *testing.T) {
	client := newTestClient(t, newFakeAdapter(t).address)
	ctx, drop := context.WithCancel(t.Context())
	drop()
	late := newEntry(ctx, of("g", "s", 100))
	client.commits.slots <- struct{}{}
	client.commits.add(late)
	if found := <-late.answer; !errors.Is(found.err, context.Canceled) || !Retryable(found.err) {
		t.Fatal(found)
	}
}

func TestACommitThatNobodyWaitsForIsNotSent(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	one, two := occupied(t, fake, client)
	ctx, drop := context.WithCancel(t.Context())
	dropped := begin(t, ctx, client, of("g", "s", 100))
	kept := begin(t, t.Context(), client, of("g", "t", 1))
	drop()
	if found := answerOf(t, dropped); !errors.Is(found.err, context.Canceled) || !Retryable(found.err) {
		t.Fatal(found.err)
	}
	one.done()
	two.done()
	next := fake.next(t)
	if !maps.Equal(next.offsets(), map[string]uint64{"g t": 1}) {
		t.Fatalf("sent: %v", next.offsets())
	}
	next.done()
	if found := answerOf(t, kept); found.err != nil {
		t.Fatal(found.err)
	}
	until(t, func() bool { return len(client.commits.slots) == 0 })
}

func TestALaterCommitWaitsForOneInFlightThatNobodyWaitsFor(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	ctx, drop := context.WithCancel(t.Context())
	dropped := begin(t, ctx, client, of("g", "s", 100))
	first := fake.next(t)
	drop()
	answerOf(t, dropped)
	rewind := of("g", "s", 50)
	rewind.Overwrite = true
	begin(t, t.Context(), client, rewind)
	begin(t, t.Context(), client, of("g", "free", 1))
	if free := fake.next(t); !maps.Equal(free.offsets(), map[string]uint64{"g free": 1}) {
		t.Fatalf("sent before its turn: %v", free.offsets())
	}
	first.done()
	if next := fake.next(t); !maps.Equal(next.offsets(), map[string]uint64{"g s": 50}) || next.Mode != offsetspb.CommitMode_OVERWRITE {
		t.Fatalf("%v %v", next.offsets(), next.Mode)
	}
}

func TestARefusalReachesOnlyTheCommitThatItConcerns(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	one, two := occupied(t, fake, client)
	good := begin(t, t.Context(), client, of("g", "good", 1))
	bad := begin(t, t.Context(), client, of("g", "bad", 2))
	one.done()
	two.done()
	fake.next(t).fail(status.Error(codes.InvalidArgument, "groups[0].shards[1].metadata: is too long"))
	for range 2 {
		alone := fake.next(t)
		if len(alone.offsets()) != 1 {
			t.Fatalf("not alone: %v", alone.offsets())
		}
		if alone.offsets()["g bad"] == 2 {
			alone.fail(status.Error(codes.InvalidArgument, "groups[0].shards[0].metadata: is too long"))
		} else {
			alone.done()
		}
	}
	var refused *InvalidError
	if found := answerOf(t, bad); !errors.As(found.err, &refused) || refused.Field != "shards[0].metadata" {
		t.Fatal(found.err)
	}
	if found := answerOf(t, good); found.err != nil {
		t.Fatal(found.err)
	}
}

func TestAFullDiskIsToldToAllWithoutAskingAgain(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	one, two := occupied(t, fake, client)
	waiting := []<-chan result{begin(t, t.Context(), client, of("g", "a", 1)), begin(t, t.Context(), client, of("g", "b", 1))}
	one.done()
	two.done()
	fake.next(t).fail(status.Error(codes.ResourceExhausted, "the disk is full"))
	for _, each := range waiting {
		var exhausted *ExhaustedError
		if found := answerOf(t, each); !errors.As(found.err, &exhausted) || !Retryable(found.err) {
			t.Fatal(found.err)
		}
	}
	if len(fake.requests) != 0 {
		t.Fatal("asked again")
	}
}

func TestALostCommitIsSentAgainBeforeALaterOneOfItsShard(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	first := begin(t, t.Context(), client, of("g", "s", 1))
	lost := fake.next(t)
	second := begin(t, t.Context(), client, of("g", "s", 2))
	for range 3 {
		lost.fail(status.Error(codes.Unavailable, "recovering"))
		if lost = fake.next(t); !maps.Equal(lost.offsets(), map[string]uint64{"g s": 1}) {
			t.Fatalf("out of order: %v", lost.offsets())
		}
	}
	lost.done()
	fake.next(t).done()
	if took := []error{answerOf(t, first).err, answerOf(t, second).err}; took[0] != nil || took[1] != nil {
		t.Fatal(took)
	}
}

func TestAnOverwriteIsAloneAndSentOnce(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	one, two := occupied(t, fake, client)
	rewind := of("g", "a", 1)
	rewind.Overwrite = true
	overwritten := begin(t, t.Context(), client, rewind)
	alone := fake.next(t)
	if alone.Mode != offsetspb.CommitMode_OVERWRITE || len(alone.offsets()) != 1 {
		t.Fatalf("%v %v", alone.Mode, alone.offsets())
	}
	alone.fail(status.Error(codes.Unavailable, "gone"))
	if found := answerOf(t, overwritten); !isLost(found.err) {
		t.Fatal(found.err)
	}
	one.done()
	two.done()
	begin(t, t.Context(), client, of("g", "b", 1))
	if next := fake.next(t); !maps.Equal(next.offsets(), map[string]uint64{"g b": 1}) {
		t.Fatalf("sent again: %v", next.offsets())
	}
}

func TestTwoMembersOfAGroupDoNotShareARequest(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	one, two := occupied(t, fake, client)
	old, young := of("g", "a", 1), of("g", "b", 1)
	old.Member, young.Member = &Member{4, "old"}, &Member{5, "young"}
	begin(t, t.Context(), client, old)
	begin(t, t.Context(), client, young)
	old.Member.Generation = 99 // of the caller, who may use it again
	one.done()
	two.done()
	seen := map[uint64]string{} // two requests that are in flight come in any order
	for range 2 {
		for _, group := range fake.next(t).Groups {
			seen[group.GetGeneration()] = group.MemberId
		}
	}
	if !maps.Equal(seen, map[uint64]string{4: "old", 5: "young"}) {
		t.Fatal(seen)
	}
}

func TestAGroupThatIsWrittenThroughGetsRequestsOfItsOwn(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	begin(t, t.Context(), client, of("through", "a", 1))
	fake.next(t).answer <- answer{reply: &offsetspb.CommitOffsetsReply{WrittenThrough: []uint32{0}}}
	until(t, func() bool { return len(client.commits.slots) == 0 })
	occupied(t, fake, client)
	for _, shard := range []string{"a", "b"} {
		begin(t, t.Context(), client, of("through", shard, 2))
		if request := fake.next(t); !maps.Equal(request.offsets(), map[string]uint64{"through " + shard: 2}) {
			t.Fatalf("%v", request.offsets())
		}
	}
}

func TestARequestHasNoMoreThanItsLimit(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	one, _ := occupied(t, fake, client)
	for at := range 3 {
		var offsets []Progress
		for shard := range 1_000 {
			offsets = append(offsets, At(fmt.Sprint(at, "/", shard), 1))
		}
		begin(t, t.Context(), client, CommitOf(billing, offsets...))
	}
	one.done()
	if request := fake.next(t); len(request.offsets()) != 2_000 {
		t.Fatal(len(request.offsets()))
	}
}

func TestWhatIsToldBesideAnOffsetIsSent(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	progress := At("s", 0).InEpoch(3)
	progress.Metadata, progress.Topic, progress.Partition, progress.Bounds = "worker 3", "orders", 7, &Bounds{0, 50, "log"}
	begin(t, t.Context(), client, CommitOf(billing, progress, At("plain", 2).InEpoch(4)))
	group := fake.next(t).Groups[0]
	row := group.Shards[0]
	if row.Offset == nil || row.LowWatermark == nil || *row.HighWatermark != 50 || row.LogId != "log" || row.Epoch != 3 ||
		row.Metadata != "worker 3" || row.Topic != "orders" || row.Partition != 7 {
		t.Errorf("%v", row)
	}
	if group.ShardNames[0] != "plain" || group.Offsets[0] != 2 || group.Epochs[0] != 4 || group.Namespace != "default" {
		t.Errorf("%v", group)
	}
}

func TestWhoseShardsWereMovedIsTold(t *testing.T) {
	const era = 1 << 32
	for name, each := range map[string]struct {
		sent    Progress
		row     *offsetspb.Superseded
		isMoved bool
	}{
		"a larger offset":            {At("s", 5), &offsetspb.Superseded{Offset: 9, Epoch: 1}, false},
		"the same":                   {At("s", 5), &offsetspb.Superseded{Offset: 5, Epoch: 1}, false},
		"a lower offset":             {At("s", 5), &offsetspb.Superseded{Offset: 4, Epoch: 2}, true},
		"held":                       {At("s", 5), &offsetspb.Superseded{Offset: 9, Epoch: 1, Held: true}, true},
		"deleted":                    {At("s", 0), &offsetspb.Superseded{Deleted: true, Epoch: 1}, true},
		"a larger epoch":             {At("s", 5).InEpoch(1), &offsetspb.Superseded{Offset: 9, Epoch: 2}, true},
		"the epoch":                  {At("s", 5).InEpoch(2), &offsetspb.Superseded{Offset: 9, Epoch: 2}, false},
		"the epoch behind its hold":  {At("s", 5).InEpoch(era), &offsetspb.Superseded{Offset: 9, Epoch: era + 1}, false},
		"another one behind a reset": {At("s", 5).InEpoch(era), &offsetspb.Superseded{Offset: 9, Epoch: era + 2}, true},
	} {
		each.row.Shard = "s"
		done, err := judge(outcome{superseded: []*offsetspb.Superseded{each.row}}, []Progress{each.sent})
		var moved *MovedError
		if errors.As(err, &moved) != each.isMoved || (len(done.Behind) == 1) == each.isMoved {
			t.Errorf("%s: %v %v", name, done, err)
		}
	}
}

func TestAClosedClientAnswersWhatWaits(t *testing.T) {
	fake := newFakeAdapter(t)
	client := newTestClient(t, fake.address)
	occupied(t, fake, client)
	waiting := begin(t, t.Context(), client, of("g", "s", 1))
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if found := answerOf(t, waiting); !isLost(found.err) {
		t.Fatal(found.err)
	}
	if _, err := client.Commit(t.Context(), of("g", "s", 1)); !isLost(err) {
		t.Fatal(err)
	}
	if _, err := client.Read(t.Context(), billing, All()); !isLost(err) {
		t.Fatal(err)
	}
	for _, err := range client.Watch(t.Context()) {
		if !isLost(err) {
			t.Fatal(err)
		}
	}
	until(t, func() bool { return len(client.commits.slots) == 0 })
}
