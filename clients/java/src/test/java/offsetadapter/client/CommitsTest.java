package offsetadapter.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.grpc.Status;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import offsetadapter.rpc.CommitMode;
import offsetadapter.rpc.CommitOffsetsReply;
import offsetadapter.rpc.GroupCommits;
import offsetadapter.rpc.Raised;
import offsetadapter.rpc.ShardCommit;
import offsetadapter.rpc.Superseded;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** What shares a request, in which order, and who hears what of its answer. */
public final class CommitsTest {
    private FakeAdapter adapter;
    private Client client;

    @Before
    public void begin() throws IOException {
        adapter = new FakeAdapter();
        client = Client.builder(adapter.address).timeout(Duration.ofSeconds(FakeAdapter.PATIENCE_S)).build();
    }

    @After
    public void end() throws InterruptedException {
        client.close();
        adapter.close();
    }

    private static Commit of(final String group, final String shard, final long offset) {
        return Commit.of(Group.of(group)).offset(shard, offset);
    }

    /** Both shared requests are in flight, so that what comes next waits. */
    private List<FakeAdapter.Held> occupied() throws InterruptedException {
        final List<FakeAdapter.Held> held = new ArrayList<>();
        for (final String group : List.of("first", "second")) {
            client.commitAsync(of(group, "s", 1));
            held.add(adapter.next());
        }
        return held;
    }

    private static <T> T answer(final CompletableFuture<T> of) throws InterruptedException, ExecutionException, TimeoutException {
        return of.get(FakeAdapter.PATIENCE_S, TimeUnit.SECONDS);
    }

    private static <E extends OffsetAdapterException> E failure(final Class<E> kind, final CompletableFuture<?> of) {
        return kind.cast(assertThrows(ExecutionException.class, () -> answer(of)).getCause());
    }

    @Test
    public void commitsThatWaitShareTheNextRequestAndEachIsAnswered() throws Exception {
        final List<FakeAdapter.Held> held = occupied();
        final List<CompletableFuture<Committed>> waiting = new ArrayList<>();
        for (int at = 0; at < 32; at++) {
            waiting.add(client.commitAsync(of("g" + at % 8, "s" + at, at)));
        }
        held.get(0).done();
        final FakeAdapter.Held shared = adapter.next();
        assertEquals(32, shared.offsets().size());
        assertEquals(8, shared.request.getGroupsCount());
        shared.answer(CommitOffsetsReply.newBuilder()
            .addSuperseded(Superseded.newBuilder().setNamespace("default").setGroup("g3").setShard("s3").setOffset(7).setEpoch(1))
            .addRaised(Raised.newBuilder().setNamespace("default").setGroup("g5").setShard("s5").setEpoch(9)).build());
        for (int at = 0; at < 32; at++) {
            final Committed done = answer(waiting.get(at));
            assertEquals(at == 3 ? 1 : 0, done.behind().size());
            assertEquals(at == 5 ? Map.of("s5", 9L) : Map.of(), done.raised());
        }
    }

    @Test
    public void manyCommitsAreSpreadEvenlyOverTheRequestsInFlight() throws Exception {
        final List<FakeAdapter.Held> held = occupied();
        final List<CompletableFuture<Committed>> waiting = new ArrayList<>();
        for (int at = 0; at < 99; at++) {
            waiting.add(client.commitAsync(of("g", "s" + at, 1)));
        }
        held.get(0).done();
        final FakeAdapter.Held first = adapter.next();
        held.get(1).done();
        final FakeAdapter.Held second = adapter.next();
        assertEquals(List.of(50, 49), List.of(first.offsets().size(), second.offsets().size()));
        first.done();
        for (final CompletableFuture<Committed> each : waiting.subList(0, 50)) {
            answer(each);
        }
        client.commitAsync(of("g", "one more", 1));
        client.commitAsync(of("h", "s", 1).overwrite());
        assertEquals(CommitMode.OVERWRITE, adapter.next().request.getMode()); // the other one waits for as many as are in flight
        second.done();
        assertEquals(Map.of("g one more", 1L), adapter.next().offsets());
    }

    @Test
    public void commitsOfOneShardAreSentOneAfterTheOther() throws Exception {
        client.commitAsync(of("g", "s", 1));
        final FakeAdapter.Held first = adapter.next();
        final CompletableFuture<Committed> second = client.commitAsync(of("g", "s", 2).offset("other", 1));
        final CompletableFuture<Committed> third = client.commitAsync(of("g", "other", 3));
        client.commitAsync(of("g", "free", 1));
        assertEquals(Map.of("g free", 1L), adapter.next().offsets());
        first.done();
        final FakeAdapter.Held next = adapter.next();
        assertEquals(Map.of("g s", 2L, "g other", 1L), next.offsets());
        next.done();
        adapter.next().done();
        answer(second);
        answer(third);
    }

    @Test
    public void aCommitThatNobodyWaitsForIsNotSent() throws Exception {
        final List<FakeAdapter.Held> held = occupied();
        final CompletableFuture<Committed> dropped = client.commitAsync(of("g", "s", 100));
        final CompletableFuture<Committed> kept = client.commitAsync(of("g", "t", 1));
        dropped.cancel(true);
        assertThrows(CancellationException.class, () -> answer(dropped));
        held.forEach(FakeAdapter.Held::done);
        final FakeAdapter.Held next = adapter.next();
        assertEquals(Map.of("g t", 1L), next.offsets());
        next.done();
        answer(kept);
    }

    @Test
    public void aLaterCommitWaitsForOneInFlightThatNobodyWaitsFor() throws Exception {
        final CompletableFuture<Committed> dropped = client.commitAsync(of("g", "s", 100));
        final FakeAdapter.Held first = adapter.next();
        dropped.cancel(true);
        client.commitAsync(of("g", "s", 50).overwrite());
        client.commitAsync(of("g", "free", 1));
        assertEquals(Map.of("g free", 1L), adapter.next().offsets());
        first.done();
        final FakeAdapter.Held next = adapter.next();
        assertEquals(Map.of("g s", 50L), next.offsets());
        assertEquals(CommitMode.OVERWRITE, next.request.getMode());
    }

    @Test
    public void aRefusalReachesOnlyTheCommitThatItConcerns() throws Exception {
        final List<FakeAdapter.Held> held = occupied();
        final CompletableFuture<Committed> good = client.commitAsync(of("g", "good", 1));
        final CompletableFuture<Committed> bad = client.commitAsync(of("g", "bad", 2));
        held.get(0).done();
        adapter.next().fail(Status.INVALID_ARGUMENT, "groups[0].shards[1].metadata: is too long");
        for (int request = 0; request < 2; request++) {
            final FakeAdapter.Held alone = adapter.next();
            assertEquals(1, alone.offsets().size());
            if (alone.offsets().containsKey("g bad")) {
                alone.fail(Status.INVALID_ARGUMENT, "groups[0].shards[0].metadata: is too long");
            } else {
                alone.done();
            }
        }
        assertEquals("shards[0].metadata", failure(InvalidException.class, bad).field());
        answer(good);
    }

    @Test
    public void aFullDiskIsToldToAllWithoutAskingAgain() throws Exception {
        final List<FakeAdapter.Held> held = occupied();
        final List<CompletableFuture<Committed>> waiting =
            List.of(client.commitAsync(of("g", "a", 1)), client.commitAsync(of("g", "b", 1)));
        held.get(0).done();
        adapter.next().fail(Status.RESOURCE_EXHAUSTED, "the disk is full");
        for (final CompletableFuture<Committed> each : waiting) {
            assertTrue(failure(ExhaustedException.class, each).isRetryable());
        }
        assertTrue(adapter.requests.isEmpty());
    }

    @Test
    public void aLostCommitIsSentAgainBeforeALaterOneOfItsShard() throws Exception {
        final CompletableFuture<Committed> first = client.commitAsync(of("g", "s", 1));
        FakeAdapter.Held lost = adapter.next();
        final CompletableFuture<Committed> second = client.commitAsync(of("g", "s", 2));
        for (int attempt = 0; attempt < 3; attempt++) {
            lost.fail(Status.UNAVAILABLE, "recovering");
            lost = adapter.next();
            assertEquals(Map.of("g s", 1L), lost.offsets());
        }
        lost.done();
        adapter.next().done();
        answer(first);
        answer(second);
    }

    @Test
    public void anOverwriteIsAloneAndSentOnce() throws Exception {
        final List<FakeAdapter.Held> held = occupied();
        final CompletableFuture<Committed> overwritten = client.commitAsync(of("g", "a", 1).overwrite());
        final FakeAdapter.Held alone = adapter.next();
        assertEquals(CommitMode.OVERWRITE, alone.request.getMode());
        alone.fail(Status.UNAVAILABLE, "gone");
        failure(LostException.class, overwritten);
        held.forEach(FakeAdapter.Held::done);
        client.commitAsync(of("g", "b", 1));
        assertEquals(Map.of("g b", 1L), adapter.next().offsets());
    }

    @Test
    public void twoMembersOfAGroupDoNotShareARequest() throws Exception {
        final List<FakeAdapter.Held> held = occupied();
        client.commitAsync(of("g", "a", 1).member(4, "old"));
        client.commitAsync(of("g", "b", 1).member(5, "young"));
        held.forEach(FakeAdapter.Held::done);
        final Map<Long, String> seen = new HashMap<>(); // two requests that are in flight come in any order
        for (int request = 0; request < 2; request++) {
            adapter.next().request.getGroupsList().forEach(group -> seen.put(group.getGeneration(), group.getMemberId()));
        }
        assertEquals(Map.of(4L, "old", 5L, "young"), seen);
    }

    @Test
    public void aGroupThatIsWrittenThroughGetsRequestsOfItsOwn() throws Exception {
        final CompletableFuture<Committed> through = client.commitAsync(of("through", "a", 1));
        adapter.next().answer(CommitOffsetsReply.newBuilder().addWrittenThrough(0).build());
        answer(through);
        occupied();
        for (final String shard : List.of("a", "b")) {
            client.commitAsync(of("through", shard, 2));
            assertEquals(Map.of("through " + shard, 2L), adapter.next().offsets());
        }
    }

    @Test
    public void aRequestHasNoMoreThanItsLimit() throws Exception {
        final List<FakeAdapter.Held> held = occupied();
        for (int at = 0; at < 3; at++) {
            final List<Progress> offsets = new ArrayList<>();
            for (int shard = 0; shard < 1_000; shard++) {
                offsets.add(Progress.of(at + "/" + shard, 1));
            }
            client.commitAsync(Commit.of(Group.of("g")).progress(offsets));
        }
        held.get(0).done();
        assertEquals(2_000, adapter.next().offsets().size());
    }

    @Test
    public void tooManyCommitsAreRefusedAtOnce() throws Exception {
        occupied();
        final List<CompletableFuture<Committed>> waiting = new ArrayList<>();
        for (int at = 0; at < 8_190; at++) {
            waiting.add(client.commitAsync(of("g", "s" + at, 1)));
        }
        failure(ExhaustedException.class, client.commitAsync(of("g", "one more", 1)));
        assertFalse(waiting.get(0).isDone());
    }

    @Test
    public void whatIsToldBesideAnOffsetIsSent() throws Exception {
        client.commitAsync(Commit.of(Group.of("g")).progress(Progress.of("s", 0).epoch(3).metadata("worker 3").labels("orders", 7)
            .bounds(0, 50).logId("log")).progress(Progress.of("plain", 2).epoch(4)));
        final GroupCommits group = adapter.next().request.getGroups(0);
        assertEquals(ShardCommit.newBuilder().setShard("s").setOffset(0).setEpoch(3).setMetadata("worker 3").setTopic("orders")
            .setPartition(7).setLowWatermark(0).setHighWatermark(50).setLogId("log").build(), group.getShards(0));
        assertEquals(List.of("plain"), group.getShardNamesList());
        assertEquals(List.of(2L), group.getOffsetsList());
        assertEquals(List.of(4L), group.getEpochsList());
    }

    @Test
    public void whoseShardsWereMovedIsTold() {
        final long era = 1L << 32;
        final Superseded.Builder row = Superseded.newBuilder();
        isMoved(false, 5, 0, row.clone().setOffset(9).setEpoch(1));
        isMoved(false, 5, 0, row.clone().setOffset(5).setEpoch(1));
        isMoved(false, 5, 0, row.clone().setOffset(-1).setEpoch(1)); // 2^64 - 1
        isMoved(true, 5, 0, row.clone().setOffset(4).setEpoch(2));
        isMoved(true, 5, 0, row.clone().setOffset(9).setEpoch(1).setHeld(true));
        isMoved(true, 0, 0, row.clone().setDeleted(true).setEpoch(1));
        isMoved(true, 5, 1, row.clone().setOffset(9).setEpoch(2));
        isMoved(false, 5, 2, row.clone().setOffset(9).setEpoch(2));
        isMoved(false, 5, era, row.clone().setOffset(9).setEpoch(era + 1));
        isMoved(true, 5, era, row.clone().setOffset(9).setEpoch(era + 2));
    }

    private static void isMoved(final boolean expected, final long offset, final long epoch, final Superseded.Builder row) {
        final Pending pending = new Pending(Commit.of(Group.of("g")).progress(Progress.of("s", offset).epoch(epoch)), 0);
        pending.superseded = List.of(row.setShard("s").build());
        if (expected) {
            assertThrows(row.toString(), MovedException.class, () -> Commits.judge(pending));
        } else {
            assertEquals(1, Commits.judge(pending).behind().size());
        }
    }

    @Test
    public void aClosedClientAnswersWhatWaits() throws Exception {
        occupied();
        final CompletableFuture<Committed> waiting = client.commitAsync(of("g", "s", 1));
        client.close();
        failure(LostException.class, waiting);
        failure(LostException.class, client.commitAsync(of("g", "s", 1)));
        assertThrows(LostException.class, () -> client.read(Group.of("g"), Shards.all()));
    }

    @Test
    public void whatDependsOnACommitMayMakeAndAwaitAnother() throws Exception {
        final CompletableFuture<Committed> chained =
            client.commitAsync(of("g", "s", 1)).thenApply(done -> client.commit(of("g", "t", 2)));
        final FakeAdapter.Held first = adapter.next();
        client.commitAsync(of("g", "s", 2)); // waits for the first one
        first.done();
        final Map<String, Long> seen = new HashMap<>();
        while (seen.size() < 2) {
            final FakeAdapter.Held next = adapter.next();
            seen.putAll(next.offsets());
            next.done();
        }
        assertEquals(Map.of("g s", 2L, "g t", 2L), seen);
        answer(chained);
    }

    @Test
    public void aThreadThatIsInterruptedGivesItsCommitUp() throws Exception {
        Thread.currentThread().interrupt();
        assertThrows(LostException.class, () -> client.commit(of("g", "s", 1)));
        assertTrue(Thread.interrupted());
    }
}
