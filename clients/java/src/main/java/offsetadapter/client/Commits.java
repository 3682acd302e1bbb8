package offsetadapter.client;

import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import offsetadapter.rpc.CommitMode;
import offsetadapter.rpc.CommitOffsetsReply;
import offsetadapter.rpc.CommitOffsetsRequest;
import offsetadapter.rpc.GroupCommits;
import offsetadapter.rpc.OffsetStoreGrpc.OffsetStoreStub;
import offsetadapter.rpc.Raised;
import offsetadapter.rpc.Superseded;

/**
 * The pending commits of a client: those that wait while requests are in flight share the next one.
 *
 * <p>Of one shard, a commit is sent after those before it were answered. A request that is refused is divided, so that a refusal reaches
 * only the commit that it concerns. One that is lost is sent again until the deadline of its commits; with OVERWRITE it is alone in its
 * request, and sent once. Nothing of a caller runs while the lock is held.
 */
final class Commits {
    /** Shared requests in flight: the adapter works on one while the next is on the wire. */
    private static final int MAX_SHARED = 2;
    /** Commits; more than that are spread evenly over the shared requests. */
    private static final int MIN_SPREAD = 32;
    /** Requests of a single commit in flight. */
    private static final int MAX_ALONE = 32;
    /** Offsets of a shared request: with the longest names 2.7 of the 4 MiB that are allowed. */
    private static final int MAX_WEIGHT = 2_048;
    /** Commits that are queued or in flight. */
    private static final int MAX_PENDING = 8_192;
    /** Groups that are remembered. */
    private static final int MAX_WRITTEN_THROUGH = 4_096;
    private static final String CLOSED = "the client is closed";

    private final OffsetStoreStub stub;
    private final Duration timeout;
    private final ScheduledExecutorService clock;

    private final Object lock = new Object();
    private Deque<Pending> queue = new ArrayDeque<>();
    /** Commits that are queued or in flight. */
    private int pending;
    private int shared;
    private int alone;
    /** Commits in the shared requests. */
    private int underway;
    /** Commits of the queue that are sent in requests of their own. */
    private int waitingAlone;
    /** Shards of requests in flight. */
    private final Set<Pending.Shard> busy = new HashSet<>();
    /** Groups whose commits wait for the Meta Service: others should not wait with them. */
    private final Set<Group> writtenThrough = new HashSet<>();
    private final Pauses pauses = new Pauses();
    private boolean isPaused;
    /** Dispatch runs, or will. */
    private boolean isWoken;
    private boolean isClosed;

    Commits(final OffsetStoreStub stub, final Duration timeout, final ScheduledExecutorService clock) {
        this.stub = stub;
        this.timeout = timeout;
        this.clock = clock;
    }

    CompletableFuture<Committed> commit(final Commit commit) {
        final Pending mine = new Pending(commit, System.nanoTime() + timeout.toNanos());
        try {
            commit.check();
        } catch (final InvalidException error) {
            mine.answer.completeExceptionally(error);
            return mine.answer;
        }
        OffsetAdapterException refusal = null;
        synchronized (lock) {
            if (isClosed) {
                refusal = new LostException(CLOSED);
            } else if (pending == MAX_PENDING) {
                refusal = new ExhaustedException(MAX_PENDING + " commits of this client wait; wait for some of them", Duration.ZERO);
            } else {
                pending++;
                mine.alarm = clock.schedule(() -> mine.answer.completeExceptionally(new LostException(Statuses.TIMED_OUT)),
                    timeout.toNanos(), TimeUnit.NANOSECONDS);
                queue.add(mine);
                waitingAlone += mine.isAlone ? 1 : 0;
                wake();
            }
        }
        if (refusal != null) {
            mine.answer.completeExceptionally(refusal);
        }
        return mine.answer;
    }

    void close() {
        final List<Runnable> answers = new ArrayList<>();
        synchronized (lock) {
            isClosed = true;
            for (final Pending waiting : queue) {
                answers.add(finish(waiting, new LostException(CLOSED)));
            }
            queue.clear();
            waitingAlone = 0;
        }
        answers.forEach(Runnable::run);
    }

    /** Let dispatch run soon, once for all that happens until then. */
    private void wake() {
        if (!isWoken && !isClosed && (mayShare() || mayBeAlone())) {
            isWoken = true;
            clock.execute(this::dispatch);
        }
    }

    private void dispatch() {
        // Callers that were answered together commit again together: let those go first that can run now.
        Thread.yield();
        synchronized (lock) {
            isWoken = false;
        }
        while (true) {
            final List<Pending> chosen;
            final boolean isAlone;
            synchronized (lock) {
                chosen = nextRequest();
                if (chosen.isEmpty()) {
                    return;
                }
                isAlone = isAlone(chosen.get(0));
                count(isAlone, chosen.size(), 1);
                for (final Pending each : chosen) {
                    busy.addAll(each.shards);
                }
            }
            send(chosen, isAlone);
        }
    }

    /**
     * Whether a shared request may be sent now. Beside another one it has to be about as large: a request costs the adapter much more
     * than a commit in it, and those that were answered together commit again together.
     */
    private boolean mayShare() {
        return shared == 0 || shared < MAX_SHARED && 4 * queue.size() >= 3 * underway;
    }

    private boolean mayBeAlone() {
        return alone < MAX_ALONE && (waitingAlone > 0 || !writtenThrough.isEmpty());
    }

    /** Take the commits of the next request out of the queue; none if no more may be sent now. */
    private List<Pending> nextRequest() {
        final boolean mayShare = mayShare();
        if (!mayShare && !mayBeAlone()) {
            return Collections.emptyList();
        }
        final int most = Math.max(MIN_SPREAD, (queue.size() + underway) / MAX_SHARED);
        final List<Pending> chosen = new ArrayList<>();
        final Map<Group, Commit.Member> members = new HashMap<>();
        // No later commit of these shards is in the request, and none overtakes one that stays in the queue.
        final Set<Pending.Shard> taken = new HashSet<>();
        final Deque<Pending> stay = new ArrayDeque<>();
        int weight = 0;
        for (Pending next = queue.poll(); next != null; next = queue.poll()) {
            if (next.answer.isDone()) { // nobody waits for it
                waitingAlone -= next.isAlone ? 1 : 0;
                finish(next, null);
                continue;
            }
            final Group group = next.commit.group();
            final boolean fits;
            if (next.isLost && isPaused) {
                fits = false;
            } else if (isAlone(next)) {
                fits = chosen.isEmpty() && alone < MAX_ALONE;
            } else if (chosen.isEmpty()) {
                fits = mayShare;
            } else {
                fits = weight + next.weight <= MAX_WEIGHT
                    && (!members.containsKey(group) || Objects.equals(members.get(group), next.commit.member()));
            }
            final boolean isFree = !isAnyIn(next.shards, busy) && !isAnyIn(next.shards, taken);
            taken.addAll(next.shards);
            if (!fits || !isFree) {
                stay.add(next);
                continue;
            }
            waitingAlone -= next.isAlone ? 1 : 0;
            weight += next.weight;
            members.put(group, next.commit.member());
            chosen.add(next);
            if (isAlone(next) || chosen.size() == most || weight >= MAX_WEIGHT) {
                stay.addAll(queue);
                break;
            }
        }
        queue = stay;
        return chosen;
    }

    private boolean isAlone(final Pending each) {
        return each.isAlone || !writtenThrough.isEmpty() && writtenThrough.contains(each.commit.group());
    }

    private static boolean isAnyIn(final List<Pending.Shard> shards, final Set<Pending.Shard> set) {
        if (!set.isEmpty()) {
            for (final Pending.Shard shard : shards) {
                if (set.contains(shard)) {
                    return true;
                }
            }
        }
        return false;
    }

    /** Count a request that begins (1) or ends (-1). */
    private void count(final boolean isAlone, final int commits, final int change) {
        if (isAlone) {
            alone += change;
        } else {
            shared += change;
            underway += change * commits;
        }
    }

    private void send(final List<Pending> chosen, final boolean isAlone) {
        long left = 0; // of the one that waits longest: when one caller goes away, the others wait on
        for (final Pending each : chosen) {
            left = Math.max(left, each.deadlineNanos - System.nanoTime());
        }
        final long limit = left;
        stub.commitOffsets(request(chosen), new ClientResponseObserver<CommitOffsetsRequest, CommitOffsetsReply>() {
            private CommitOffsetsReply reply;
            private Future<?> alarm;

            @Override
            public void beforeStart(final ClientCallStreamObserver<CommitOffsetsRequest> call) {
                // Not as a deadline, which would be another header in each request: the adapter decodes anew what is not as in the one
                // before.
                alarm = after(limit, () -> call.cancel(Statuses.TIMED_OUT, null));
            }

            @Override
            public void onNext(final CommitOffsetsReply answer) {
                reply = answer;
            }

            @Override
            public void onError(final Throwable error) {
                cancel(alarm);
                settle(chosen, isAlone, null, error);
            }

            @Override
            public void onCompleted() {
                cancel(alarm);
                settle(chosen, isAlone, reply, null);
            }
        });
    }

    private void settle(final List<Pending> chosen, final boolean isAlone, final CommitOffsetsReply reply, final Throwable error) {
        final List<Runnable> answers = new ArrayList<>(chosen.size());
        final boolean isMine;
        synchronized (lock) {
            count(isAlone, chosen.size(), -1);
            for (final Pending each : chosen) {
                busy.removeAll(each.shards);
            }
            if (error == null) {
                answered(chosen, reply, answers);
            } else {
                failed(chosen, error, answers);
            }
            isMine = !queue.isEmpty() && !isWoken && !isClosed;
            isWoken |= isMine;
        }
        if (isMine) {
            dispatch(); // before the answers: what depends on one may wait for another commit
        }
        answers.forEach(Runnable::run);
    }

    private void answered(final List<Pending> chosen, final CommitOffsetsReply reply, final List<Runnable> answers) {
        noteWrittenThrough(chosen, reply.getWrittenThroughList());
        if (reply.getSupersededCount() + reply.getRaisedCount() > 0) {
            final Map<Pending.Shard, Pending> places = new HashMap<>();
            for (final Pending each : chosen) {
                each.shards.forEach(shard -> places.put(shard, each));
            }
            for (final Superseded row : reply.getSupersededList()) {
                final Pending place = places.get(new Pending.Shard(row.getNamespace(), row.getGroup(), row.getShard()));
                if (place != null) {
                    place.superseded = place.superseded == null ? new ArrayList<>() : place.superseded;
                    place.superseded.add(row);
                }
            }
            for (final Raised row : reply.getRaisedList()) {
                final Pending place = places.get(new Pending.Shard(row.getNamespace(), row.getGroup(), row.getShard()));
                if (place != null) {
                    place.raised = place.raised == null ? new ArrayList<>() : place.raised;
                    place.raised.add(row);
                }
            }
        }
        for (final Pending each : chosen) {
            if (each.isLost) {
                pauses.forget();
            }
            answers.add(finish(each, null));
        }
    }

    private void noteWrittenThrough(final List<Pending> chosen, final List<Integer> indexes) {
        if (indexes.isEmpty()) {
            return;
        }
        if (writtenThrough.size() > MAX_WRITTEN_THROUGH) {
            writtenThrough.clear();
        }
        final Set<Group> seen = new LinkedHashSet<>(); // in the order of the request
        chosen.forEach(each -> seen.add(each.commit.group()));
        final List<Group> groups = new ArrayList<>(seen);
        for (final int at : indexes) {
            if (at < groups.size()) {
                writtenThrough.add(groups.get(at));
            }
        }
    }

    private void failed(final List<Pending> chosen, final Throwable error, final List<Runnable> answers) {
        final OffsetAdapterException problem = Statuses.exception(error);
        final boolean isLost = problem instanceof LostException;
        final boolean isDivided = chosen.size() > 1 && !Statuses.isCommon(error);
        boolean isAgain = false;
        for (int at = chosen.size() - 1; at >= 0; at--) {
            final Pending each = chosen.get(at);
            final boolean repeats = isLost ? !each.commit.isOverwrite() && !each.answer.isDone() : isDivided;
            if (!repeats || isClosed) {
                answers.add(finish(each, problem));
                continue;
            }
            isAgain = true;
            each.isAlone = true;
            each.isLost |= isLost;
            waitingAlone++;
            queue.addFirst(each);
        }
        if (isAgain && isLost && !isPaused) {
            isPaused = after(TimeUnit.MILLISECONDS.toNanos(pauses.nextMillis()), this::endPause) != null;
        }
    }

    /** Null when the client is being closed. */
    private Future<?> after(final long nanos, final Runnable task) {
        try {
            return clock.schedule(task, nanos, TimeUnit.NANOSECONDS);
        } catch (final RejectedExecutionException closing) {
            return null;
        }
    }

    private static void cancel(final Future<?> alarm) {
        if (alarm != null) {
            alarm.cancel(false);
        }
    }

    private void endPause() {
        synchronized (lock) {
            isPaused = false;
            wake();
        }
    }

    /** A commit is over, whether or not somebody waits for it. Returns what tells it, to be run without the lock. */
    private Runnable finish(final Pending done, final OffsetAdapterException problem) {
        pending--;
        done.alarm.cancel(false);
        return () -> {
            if (problem != null) {
                done.answer.completeExceptionally(problem);
                return;
            }
            try {
                done.answer.complete(judge(done));
            } catch (final MovedException moved) {
                done.answer.completeExceptionally(moved);
            }
        };
    }

    /** A shard that somebody moved is an error. One of which more is stored already, in the epoch of the commit, is not. */
    static Committed judge(final Pending done) {
        if (done.superseded == null && done.raised == null) {
            return Committed.PLAIN;
        }
        final List<Committed.Stands> behind = new ArrayList<>();
        final List<MovedException.Moved> moved = new ArrayList<>();
        for (final Superseded row : done.superseded == null ? Collections.<Superseded>emptyList() : done.superseded) {
            for (final Progress sent : done.commit.progress()) {
                if (!sent.shard().equals(row.getShard())) {
                    continue;
                }
                if (row.getHeld() || row.getDeleted() || Long.compareUnsigned(row.getOffset(), sent.offset()) < 0
                    || sent.epoch() != 0 && Long.compareUnsigned(row.getEpoch(), takenUp(sent.epoch())) > 0) {
                    final OptionalLong stands = row.getDeleted() ? OptionalLong.empty() : OptionalLong.of(row.getOffset());
                    moved.add(new MovedException.Moved(row.getShard(), stands, row.getEpoch(), row.getHeld()));
                } else {
                    behind.add(new Committed.Stands(row.getShard(), row.getOffset(), row.getEpoch()));
                }
            }
        }
        if (!moved.isEmpty()) {
            throw new MovedException(moved);
        }
        final Map<String, Long> raised = new LinkedHashMap<>();
        for (final Raised row : done.raised == null ? Collections.<Raised>emptyList() : done.raised) {
            raised.put(row.getShard(), row.getEpoch());
        }
        return new Committed(behind, raised);
    }

    /** A reset's epoch, whose lower half is 0, and the one behind its hold are one to a consumer that read either. */
    private static long takenUp(final long epoch) {
        return (int) epoch == 0 ? epoch + 1 : epoch;
    }

    /** One GroupCommits for each group, in the order in which groups first occur. */
    private static CommitOffsetsRequest request(final List<Pending> chosen) {
        final Map<Group, GroupCommits.Builder> groups = new LinkedHashMap<>();
        final CommitOffsetsRequest.Builder request = CommitOffsetsRequest.newBuilder();
        for (final Pending each : chosen) {
            final Commit commit = each.commit;
            final GroupCommits.Builder group = groups.computeIfAbsent(commit.group(), key -> {
                final GroupCommits.Builder made = GroupCommits.newBuilder().setNamespace(key.namespace()).setGroup(key.name());
                if (commit.member() != null) {
                    made.setMemberId(commit.member().id).setGeneration(commit.member().generation);
                }
                return made;
            });
            for (final Progress progress : commit.progress()) {
                if (progress.isPlain()) {
                    group.addShardNames(progress.shard()).addOffsets(progress.offset()).addEpochs(progress.epoch());
                } else {
                    group.addShards(progress.toProto());
                }
            }
            if (commit.isOverwrite()) {
                request.setMode(CommitMode.OVERWRITE);
            }
        }
        for (final GroupCommits.Builder group : groups.values()) {
            request.addGroups(group.getEpochsList().stream().allMatch(epoch -> epoch == 0) ? group.clearEpochs() : group);
        }
        return request.build();
    }
}
