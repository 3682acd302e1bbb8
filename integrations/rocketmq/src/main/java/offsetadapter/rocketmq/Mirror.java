package offsetadapter.rocketmq;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;
import offsetadapter.rocketmq.Sidecar.SidecarException;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.constant.LoggerName;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.logging.org.slf4j.Logger;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;

/**
 * Keeps the adapter equal to the broker's table of offsets, and the table equal to what others change in the adapter.
 *
 * Whoever changes the table notes the key; the one sender thread reads the table when it sends, so that a request has the newest
 * offset of each queue and two commits that race cannot be sent in the wrong order. The table is what counts while the broker runs:
 * an offset that went back there goes back in the adapter. A higher epoch in the adapter is somebody else's reset or delete, and
 * counts more than the table. Never blocks a caller, except one that waits for its commit.
 */
final class Mirror implements Runnable, Sidecar.Watcher {
    static final int BATCH = 2_000;
    /** An unchanged offset is committed again after this time, so that it does not expire. */
    static final long TOUCH_MS = 600_000;
    static final long SCAN_MS = 60_000;
    static final long ACK_TIMEOUT_MS = 3_000;
    private static final long WATCH_AGAIN_MS = 1_000;
    private static final long DRAIN_MS = 5_000;
    private static final long MISS_MS = 5_000;
    private static final long PAUSE_MIN_MS = 50;
    private static final long PAUSE_MAX_MS = 2_000;
    private static final int GROUPS_AT_ONCE = 50;
    private static final int MISSES_MAX = 10_000;
    private static final Logger LOG = LoggerFactory.getLogger(LoggerName.BROKER_LOGGER_NAME);

    /** How the table and the adapter are compared when nothing of their past is known in memory. */
    private enum Rule { LARGER, BROKER, ADAPTER }

    /** A key whose offset is to be sent. */
    private static final class Note {
        boolean reset;
        /** What the table had when it was noted last. */
        long offset = Broker.NONE;
        CompletableFuture<Void> done;
    }

    /** What is known of a key. */
    private static final class Known {
        Standing standing;
        /** The table has or had it. */
        boolean here;
        /** Somebody deleted its group or topic: if it is gone from the table, that is why. */
        boolean deleted;
        /** The queue is empty here: the adapter's offset is left as it is until a consumer commits. */
        boolean left;
        long sentMs;
        /** The offsets that were sent to replace a larger one, without an answer: the lowest and the highest. */
        long askedLow = Long.MAX_VALUE;
        long askedHigh = Broker.NONE;
    }

    private final Broker broker;
    private final Sidecar sidecar;
    private final Marker marker;
    private final Settings settings;
    private final LongSupplier clockMs;
    private final Map<Key, Known> known = new ConcurrentHashMap<>();
    private final Map<Key, Long> misses = new ConcurrentHashMap<>();
    private volatile Map<Key, Long> endsAtStart = new HashMap<>();

    private final Object lock = new Object();
    private Map<Key, Note> dirty = new LinkedHashMap<>();
    private Set<Key> sending = new HashSet<>();
    private boolean scanSoon;
    private boolean resync;
    private Map<Key, Standing> changes = new HashMap<>();
    private boolean watching;
    private long nextWatchMs;
    private volatile String watchEnded = "";
    private boolean demoted;
    private volatile boolean stopping;
    private volatile boolean active;
    private volatile Rule rule;
    private int comparisons;
    private volatile boolean reconciled;
    private volatile boolean started;
    private volatile boolean answering;
    private long nextScanMs;
    private long scanEveryMs = SCAN_MS;
    private long pauseMs;
    private boolean drained;

    final AtomicLong requests = new AtomicLong();
    final AtomicLong sent = new AtomicLong();
    final AtomicLong failures = new AtomicLong();
    final AtomicLong adopted = new AtomicLong();
    final AtomicLong clamped = new AtomicLong();
    final AtomicLong foreign = new AtomicLong();
    final AtomicLong forgotten = new AtomicLong();
    final AtomicLong refused = new AtomicLong();
    final AtomicLong unacknowledged = new AtomicLong();
    volatile String lastError = "";
    private final Set<Key> refusedNames = ConcurrentHashMap.newKeySet();

    Mirror(final Broker broker, final Sidecar sidecar, final Marker marker, final Settings settings, final LongSupplier clockMs) {
        this.broker = broker;
        this.sidecar = sidecar;
        this.marker = marker;
        this.settings = settings;
        this.clockMs = clockMs;
        this.rule = marker.foreign() ? Rule.BROKER : Rule.LARGER;
    }

    // ---- what callers in the broker use

    /** The table may have a new offset of this key. The returned future is null if nothing has to be sent, or nobody waits. */
    CompletableFuture<Void> note(final Key key, final boolean reset, final boolean waits) {
        if (!mirrors(key)) {
            return null;
        }
        synchronized (lock) {
            Note note = dirty.get(key);
            if (note == null) {
                if (!reset && !sending.contains(key) && unchanged(key)) {
                    return null;
                }
                note = new Note();
                dirty.put(key, note);
                lock.notifyAll();
            }
            note.reset |= reset;
            note.offset = broker.offset(key);
            if (!waits || !active) {
                return null;
            }
            if (note.done == null) {
                note.done = new CompletableFuture<>();
            }
            return note.done;
        }
    }

    /** Waits until the sidecar has the noted commit. Raises IllegalStateException if it has not, and that is to be an error. */
    void await(final CompletableFuture<Void> done) {
        if (done == null) {
            return;
        }
        String why;
        try {
            if (answering || settings.absent == Settings.Absent.REFUSE) {
                done.get(ACK_TIMEOUT_MS, TimeUnit.MILLISECONDS);
                return;
            }
            why = "the sidecar does not answer";
        } catch (TimeoutException e) {
            why = "the sidecar did not answer within " + ACK_TIMEOUT_MS + " ms";
        } catch (ExecutionException e) {
            why = e.getCause().getMessage();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            why = "interrupted";
        }
        unacknowledged.incrementAndGet();
        if (settings.absent == Settings.Absent.REFUSE) {
            throw new IllegalStateException("offset adapter: this commit is not acknowledged: " + why);
        }
    }

    /** Raises IllegalStateException when commits are to be refused, because the sidecar does not answer. */
    void check() {
        if (active && settings.absent == Settings.Absent.REFUSE && !answering) {
            unacknowledged.incrementAndGet();
            throw new IllegalStateException("offset adapter: commits are refused (" + Settings.ABSENT
                + " = refuse): the sidecar at " + settings.address + " does not answer: " + lastError);
        }
    }

    /** The offset of a key that the table lacks, from the Meta Service; NONE if it lacks it too, or cannot be asked now. */
    long missing(final Key key) {
        if (!active || !reconciled || !answering || !mirrors(key)) {
            return Broker.NONE;
        }
        final Long asked = misses.get(key);
        final long now = clockMs.getAsLong();
        if (asked != null && now - asked < MISS_MS) {
            return Broker.NONE;
        }
        if (misses.size() > MISSES_MAX) {
            misses.clear();
        }
        misses.put(key, now);
        try {
            final Standing standing = sidecar.read(key);
            if (standing == null || standing.deleted) {
                return Broker.NONE;
            }
            final Known before = known.get(key);
            if (before != null && before.standing.above(standing)) {
                return Broker.NONE;
            }
            return adopt(key, standing) ? broker.offset(key) : Broker.NONE;
        } catch (SidecarException e) {
            lastError = e.getMessage();
            return Broker.NONE;
        }
    }

    /** Somebody deletes all offsets of a group, or of a topic. The other one is null. */
    void deleting(final String group, final String topic) {
        known.forEach((key, of) -> of.deleted |= key.group.equals(group) || key.topic.equals(topic));
    }

    /** Offsets may have changed without a note. */
    void scanSoon() {
        synchronized (lock) {
            scanSoon = true;
            lock.notifyAll();
        }
    }

    /** Scans every so many milliseconds: for brokers whose table is changed without a note. */
    void scanEvery(final long ms) {
        scanEveryMs = ms;
    }

    /** This broker has become the one of the pair that commits, or is it no longer. */
    void active(final boolean now) {
        if (now && !active && started) {
            rememberEnds();
        }
        synchronized (lock) {
            if (now && !active) {
                if (started) {
                    rule = Rule.ADAPTER;
                    reconciled = false;
                    comparisons++;
                }
                active = true;
                demoted = false;
            } else if (!now && active) {
                active = false;
                demoted = true;
            }
            lock.notifyAll();
        }
    }

    /** The broker has taken over another one's table: compare with the adapter again. */
    void again() {
        synchronized (lock) {
            if (active) {
                rule = Rule.LARGER;
                reconciled = false;
                comparisons++;
                lock.notifyAll();
            }
        }
    }

    /** The broker serves: from now on the files say that it has run with the plugin. */
    void started() {
        started = true;
        mark();
    }

    String state() {
        return !active ? "slave" : !reconciled ? "not compared yet" : answering ? "serving" : "absent";
    }

    int dirtyCount() {
        synchronized (lock) {
            return dirty.size() + sending.size();
        }
    }

    /** Calls `persist`, which writes the broker's file, and then what belongs to it. */
    void persisting(final Runnable persist) {
        final String epochs = reconciled ? Marker.epochs(standings()) : null;
        persist.run();
        try {
            if (epochs != null) {
                marker.save(epochs);
            }
        } catch (IOException e) {
            failed("epochs are not saved", e.toString());
        }
    }

    /** Sends what is left, for at most DRAIN_MS, and ends. */
    void stop() {
        final long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(DRAIN_MS);
        synchronized (lock) {
            stopping = true;
            lock.notifyAll();
            try {
                while (active && reconciled && answering && !(dirty.isEmpty() && sending.isEmpty()) && System.nanoTime() < until) {
                    lock.wait(20);
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            drained = active && reconciled && dirty.isEmpty() && sending.isEmpty();
        }
    }

    /** The broker has written its last file. */
    void stopped() {
        if (!stopping) {
            stop(); // of a broker whose offset manager is not replaced
        }
        sidecar.close();
        try {
            if (drained) {
                marker.stopped(standings());
            }
        } catch (IOException e) {
            failed("the marker is not written", e.toString());
        }
    }

    // ---- the sender

    /** The first comparison, by the thread that starts the broker. Returns false if the sidecar did not answer in time. */
    boolean start() throws InterruptedException {
        rememberEnds();
        if (!active) {
            return true;
        }
        final long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(settings.startWaitMs);
        long warned = 0;
        while (true) {
            try {
                reconcile();
                return true;
            } catch (SidecarException e) {
                absent("not reached at the start", e);
                if (settings.absent == Settings.Absent.CONTINUE && System.nanoTime() > until) {
                    return false;
                }
                if (System.nanoTime() - warned > TimeUnit.SECONDS.toNanos(10) || warned == 0) {
                    warned = System.nanoTime();
                    say("waits for the sidecar at " + settings.address + " before the broker opens its ports"
                        + (settings.absent == Settings.Absent.REFUSE ? " (" + Settings.ABSENT + " = refuse)" : ""));
                }
                Thread.sleep(200);
            }
        }
    }

    @Override
    public void run() {
        try {
            while (awaitWork()) {
                try {
                    step();
                } catch (RuntimeException | LinkageError e) {
                    LOG.error("offset-adapter: a bug in the plugin; the broker continues, and the mirror too", e);
                    failed("internal error", e.toString());
                    pauseMs = PAUSE_MAX_MS;
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** False: it is time to end. */
    private boolean awaitWork() throws InterruptedException {
        synchronized (lock) {
            for (long until = clockMs.getAsLong() + pauseMs; pauseMs > 0 && !stopping && clockMs.getAsLong() < until; ) {
                lock.wait(Math.max(1, until - clockMs.getAsLong()));
            }
            while (!stopping && !hasWork()) {
                final long due = watching ? nextScanMs : Math.min(nextScanMs, nextWatchMs);
                lock.wait(active ? Math.max(1, Math.min(SCAN_MS, due - clockMs.getAsLong())) : SCAN_MS);
            }
            return !stopping || active && reconciled && answering && !dirty.isEmpty();
        }
    }

    /** One round: compare if that is due, take over what others changed, then send what has changed here. */
    void step() {
        try {
            if (demoted) {
                flushOfFormerMaster();
                return;
            }
            if (!active) {
                return;
            }
            if (!reconciled) {
                reconcile();
            }
            watch();
            if (takeScanDue()) {
                scan();
            }
            final Map<Key, Note> batch = nextBatch();
            if (!batch.isEmpty()) {
                send(batch, true);
            }
            pauseMs = 0;
        } catch (SidecarException e) {
            if (e.absent) {
                absent("not sent, tried again", e);
            } else {
                failed("not sent, tried again", e.getMessage());
            }
            pauseMs = Math.min(PAUSE_MAX_MS, Math.max(PAUSE_MIN_MS, pauseMs * 2));
        }
    }

    private boolean hasWork() {
        final long now = clockMs.getAsLong();
        return demoted || active && (!reconciled || resync || !changes.isEmpty() || scanSoon || now >= nextScanMs || !dirty.isEmpty()
            || !watching && now >= nextWatchMs);
    }

    private Map<Key, Note> nextBatch() {
        synchronized (lock) {
            final Map<Key, Note> batch = new LinkedHashMap<>();
            for (final Map.Entry<Key, Note> entry : dirty.entrySet()) {
                if (batch.size() == BATCH) {
                    break;
                }
                batch.put(entry.getKey(), entry.getValue());
            }
            dirty.keySet().removeAll(batch.keySet());
            sending = new HashSet<>(batch.keySet());
            return batch;
        }
    }

    /** Sends a batch. What failed is noted again. */
    private void send(final Map<Key, Note> batch, final boolean overwrites) throws SidecarException {
        final Map<Key, Note> left = new LinkedHashMap<>(batch);
        try {
            final List<Sidecar.Offset> forward = new ArrayList<>();
            final List<Sidecar.Offset> back = new ArrayList<>();
            final Map<String, List<Sidecar.Offset>> resets = new LinkedHashMap<>();
            final Map<String, List<Key>> deletes = new LinkedHashMap<>();
            for (final Map.Entry<Key, Note> entry : batch.entrySet()) {
                final Key key = entry.getKey();
                final Known of = known.get(key);
                final Standing there = of == null ? null : of.standing;
                final long offset = broker.offset(key);
                if (offset < 0) {
                    if (overwrites && there != null && !there.deleted && of.here) {
                        if (of.deleted || !broker.knows(key)) {
                            deletes.computeIfAbsent(key.group, g -> new ArrayList<>()).add(key);
                            continue;
                        }
                        forgotten(key, of);
                    }
                    finish(left, key, null);
                    continue;
                }
                final Sidecar.Offset row = new Sidecar.Offset(key, there == null ? 0 : there.epoch, offset);
                if (entry.getValue().reset) {
                    resets.computeIfAbsent(key.group, g -> new ArrayList<>()).add(row);
                } else if (overwrites && there != null && !there.deleted && offset < there.offset) {
                    back.add(row);
                } else {
                    forward.add(row);
                }
            }
            commit(left, forward, false);
            for (final Map.Entry<String, List<Sidecar.Offset>> entry : resets.entrySet()) {
                reset(left, entry.getKey(), entry.getValue(), back);
            }
            commit(left, back, true);
            for (final Map.Entry<String, List<Key>> entry : deletes.entrySet()) {
                delete(left, entry.getKey(), entry.getValue());
            }
        } finally {
            putBack(left);
        }
    }

    /**
     * The table has it no longer, and nobody deleted it: a query does that (apache/rocketmq 10987). It is given back; of a light queue,
     * whose end is not known here, when a consumer asks for it.
     */
    private void forgotten(final Key key, final Known of) {
        LOG.warn("offset-adapter: {}: gone from the broker's table, although its group and topic are there; {} is kept", key, of.standing);
        forgotten.incrementAndGet();
        of.here = false;
        if (!MixAll.isLmq(key.topic)) {
            adopt(key, of.standing);
        }
    }

    private void commit(final Map<Key, Note> left, final List<Sidecar.Offset> rows, final boolean overwrite) throws SidecarException {
        if (rows.isEmpty()) {
            return;
        }
        try {
            commitAtOnce(left, rows, overwrite);
        } catch (SidecarException e) {
            if (e.absent) {
                relearn(rows, e);
                // A rewind needs the Meta Service where its epoch is unknown: then it is only this that has to wait.
                throw overwrite && present(rows) ? new SidecarException(e.getMessage(), false) : e;
            }
            final Map<String, List<Sidecar.Offset>> groups = new LinkedHashMap<>();
            rows.forEach(row -> groups.computeIfAbsent(row.key.group, g -> new ArrayList<>()).add(row));
            for (final List<Sidecar.Offset> group : groups.values()) {
                try {
                    commitAtOnce(left, group, overwrite);
                } catch (SidecarException refusal) {
                    if (refusal.absent) {
                        throw refusal;
                    }
                    refuse(left, group, refusal);
                }
            }
        }
    }

    private void commitAtOnce(final Map<Key, Note> left, final List<Sidecar.Offset> rows, final boolean overwrite) throws SidecarException {
        if (overwrite) {
            asking(rows);
        }
        final Sidecar.Committed reply = sidecar.commit(rows, overwrite);
        answered(rows.size());
        final Map<String, Set<Key>> unknown = new HashMap<>();
        for (final Sidecar.Offset row : rows) {
            final Standing other = reply.superseded.get(row.key);
            if (other == null) {
                final Long raised = reply.raised.get(row.key);
                final long epoch = raised != null ? raised : row.epoch;
                know(row.key, Standing.live(epoch, row.offset), true);
                if (epoch == 0) {
                    unknown.computeIfAbsent(row.key.group, g -> new HashSet<>()).add(row.key);
                }
            }
        }
        if (!unknown.isEmpty()) {
            learn(unknown);
        }
        for (final Sidecar.Offset row : rows) {
            final Standing other = reply.superseded.get(row.key);
            if (other != null) {
                if (other.deleted || other.epoch != row.epoch || other.offset != row.offset) {
                    takeOver(row.key, other);
                } else {
                    know(row.key, other, true);
                }
            }
            finish(left, row.key, null);
        }
    }

    /** These replace something larger. If the answer is lost, what stands then is not somebody else's. */
    private void asking(final List<Sidecar.Offset> rows) {
        for (final Sidecar.Offset row : rows) {
            final Known of = known.get(row.key);
            if (of != null) {
                of.askedLow = Math.min(of.askedLow, row.offset);
                of.askedHigh = Math.max(of.askedHigh, row.offset);
            }
        }
    }

    /** The epochs of keys that were committed without one. */
    private void learn(final Map<String, Set<Key>> keys) throws SidecarException {
        final Map<Key, Standing> found = sidecar.read(keys.keySet(), false);
        keys.values().forEach(some -> some.forEach(key -> {
            final Standing standing = found.get(key);
            final Known of = known.get(key);
            if (standing != null && of != null && of.standing.epoch == 0 && standing.offset == of.standing.offset) {
                know(key, standing, of.here);
            }
        }));
    }

    /** After a failure: a sidecar that has lost its store does not know the epochs of this broker until it has read them again. */
    private void relearn(final List<Sidecar.Offset> rows, final SidecarException why) {
        if (!answering) {
            return;
        }
        final Set<String> groups = new HashSet<>();
        rows.forEach(row -> groups.add(row.key.group));
        try {
            final Map<Key, Standing> found = sidecar.read(groups, true);
            for (final Sidecar.Offset row : rows) {
                final Standing standing = found.get(row.key);
                if (standing == null) {
                    known.remove(row.key);
                } else if (row.epoch > standing.epoch) {
                    know(row.key, standing, true);
                }
            }
        } catch (SidecarException e) {
            LOG.info("offset-adapter: after {}: {}", why.getMessage(), e.getMessage());
        }
    }

    private boolean present(final List<Sidecar.Offset> rows) {
        try {
            sidecar.read(Collections.singleton(rows.get(0).key.group), false);
            return true;
        } catch (SidecarException e) {
            return false;
        }
    }

    private void reset(
        final Map<Key, Note> left, final String group, final List<Sidecar.Offset> rows, final List<Sidecar.Offset> instead
    ) throws SidecarException {
        try {
            asking(rows);
            final Map<Key, Standing> after = sidecar.reset(group, rows);
            answered(rows.size());
            for (final Sidecar.Offset row : rows) {
                final Standing standing = after.get(row.key);
                know(row.key, standing != null ? standing : Standing.live(row.epoch, row.offset), true);
                finish(left, row.key, null);
                if (standing != null && standing.offset != row.offset) {
                    note(row.key, false, false);
                }
            }
        } catch (SidecarException e) {
            if (e.absent && !answering) {
                throw e;
            }
            failed("a reset of group " + group + " is committed like a consumer's rewind", e.getMessage());
            instead.addAll(rows);
        }
    }

    private void delete(final Map<Key, Note> left, final String group, final List<Key> keys) throws SidecarException {
        try {
            final Map<Key, Standing> after = sidecar.delete(group, keys);
            answered(keys.size());
            for (final Key key : keys) {
                final Standing standing = after.get(key);
                if (standing == null) {
                    known.remove(key);
                } else {
                    know(key, standing, false);
                }
                finish(left, key, null);
            }
        } catch (SidecarException e) {
            failed("group " + group + " is not deleted in the adapter" + (e.absent ? " yet" : "; delete it there: offset-adapter offsets delete"), e.getMessage());
            refused.addAndGet(e.absent ? 0 : keys.size());
            for (final Key key : keys) {
                known.get(key).here = e.absent; // the next scan tries again
                finish(left, key, null);
            }
        }
    }

    private void refuse(final Map<Key, Note> left, final List<Sidecar.Offset> rows, final SidecarException why) {
        refused.addAndGet(rows.size());
        failed(rows.size() + " offsets of group " + rows.get(0).key.group + " are refused", why.getMessage());
        rows.forEach(row -> finish(left, row.key, why));
    }

    private void finish(final Map<Key, Note> left, final Key key, final Exception failure) {
        final Note note = left.remove(key);
        synchronized (lock) {
            sending.remove(key);
            lock.notifyAll();
        }
        if (note != null && note.done != null) {
            if (failure == null) {
                note.done.complete(null);
            } else {
                note.done.completeExceptionally(failure);
            }
        }
    }

    private void putBack(final Map<Key, Note> left) {
        synchronized (lock) {
            if (!left.isEmpty()) {
                final Map<Key, Note> all = new LinkedHashMap<>(left);
                dirty.forEach((key, newer) -> all.merge(key, newer, Mirror::joined));
                dirty = all;
            }
            sending = new HashSet<>();
            lock.notifyAll();
        }
    }

    private static Note joined(final Note older, final Note newer) {
        newer.reset |= older.reset;
        newer.offset = newer.offset < 0 ? older.offset : newer.offset;
        if (older.done != null) {
            if (newer.done == null) {
                newer.done = older.done;
            } else {
                newer.done.whenComplete((nothing, failure) -> {
                    if (failure == null) {
                        older.done.complete(null);
                    } else {
                        older.done.completeExceptionally(failure);
                    }
                });
            }
        }
        return newer;
    }

    /** What a former master had not sent yet: only forward, since the new master may have gone back meanwhile. */
    private void flushOfFormerMaster() {
        try {
            Map<Key, Note> batch = nextBatch();
            while (reconciled && !batch.isEmpty()) {
                send(batch, false);
                batch = nextBatch();
            }
        } catch (SidecarException e) {
            failed("the last commits before this broker became a slave are not sent", e.getMessage());
        }
        synchronized (lock) {
            demoted = false;
            dirty.values().forEach(note -> {
                if (note.done != null) {
                    note.done.completeExceptionally(new IllegalStateException("this broker has become a slave"));
                }
            });
            dirty = new LinkedHashMap<>();
            sending = new HashSet<>();
            known.clear();
        }
    }

    // ---- what others change in the adapter

    /** Begins to watch, and takes over what a watch has told. */
    private void watch() throws SidecarException {
        final boolean begin;
        final boolean all;
        synchronized (lock) {
            begin = !watching && clockMs.getAsLong() >= nextWatchMs;
            watching |= begin;
            all = resync;
        }
        if (begin) {
            sidecar.watch(this);
        }
        final Map<Key, Standing> rows = all ? sidecar.list() : new HashMap<>();
        synchronized (lock) {
            resync &= !all;
            changes.forEach((key, standing) -> rows.merge(key, standing, (a, b) -> b.above(a) ? b : a));
            changes = new HashMap<>();
        }
        rows.forEach((key, standing) -> {
            final Known of = known.get(key);
            if (mirrors(key) && (of == null || standing.above(of.standing) || standing.deleted && !of.standing.deleted && standing.epoch >= of.standing.epoch)) {
                takeOver(key, standing);
            }
        });
    }

    @Override
    public void resync() {
        watchEnded = "";
        synchronized (lock) {
            resync = true;
            changes.clear();
            lock.notifyAll();
        }
    }

    @Override
    public void changed(final Map<Key, Standing> rows) {
        synchronized (lock) {
            rows.forEach((key, standing) -> changes.merge(key, standing, (a, b) -> b.above(a) ? b : a));
            lock.notifyAll();
        }
    }

    @Override
    public void ended(final String why) {
        synchronized (lock) {
            watching = false;
            nextWatchMs = clockMs.getAsLong() + WATCH_AGAIN_MS;
            lock.notifyAll();
        }
        if (!why.equals(watchEnded)) {
            LOG.info("offset-adapter: the watch has ended, and begins again every {} ms: {}", WATCH_AGAIN_MS, why);
        }
        watchEnded = why;
    }

    /** Takes over what somebody else stored. The table is changed first: an epoch that is remembered has to be in the file. */
    private void takeOver(final Key key, final Standing standing) {
        final Known of = known.get(key);
        final long epoch = of == null ? 0 : of.standing.epoch;
        final long here = broker.offset(key);
        if (of != null && !standing.deleted && standing.epoch > epoch && of.askedLow <= standing.offset && standing.offset <= of.askedHigh) {
            know(key, standing, here >= 0); // this broker's own, whose answer was lost
            note(key, false, false);
            return;
        }
        foreign.incrementAndGet();
        if (standing.deleted && standing.epoch == epoch) { // expired, and yet the broker has it
            know(key, standing, here >= 0);
            note(key, false, false);
        } else if (standing.deleted) {
            LOG.warn("offset-adapter: {}: deleted in the adapter, and so here", key);
            broker.remove(key);
            know(key, standing, false);
        } else if (here >= 0 && epoch > 0 && standing.epoch > epoch) {
            resetHere(key, standing);
        } else if (standing.offset > here) {
            adopt(key, standing);
        } else {
            know(key, standing, here >= 0);
            note(key, false, false);
        }
    }

    private void resetHere(final Key key, final Standing standing) {
        final long to = toEnd(key, standing.offset);
        LOG.warn("offset-adapter: {}: {} in the adapter, so reset here from {} to {}", key, standing, broker.offset(key), to);
        broker.reset(key, to);
        know(key, standing, true);
        if (to != standing.offset) {
            note(key, false, false);
        }
    }

    // ---- the comparison

    private void reconcile() throws SidecarException {
        final long began = System.nanoTime();
        final Rule by;
        final int comparison;
        synchronized (lock) {
            by = rule;
            comparison = comparisons;
        }
        final Map<Key, Standing> there = new HashMap<>(sidecar.list());
        answered(0);
        askStore(there);
        final Set<Key> changedHere;
        synchronized (lock) {
            changedHere = new HashSet<>();
            dirty.forEach((key, note) -> {
                if (note.offset == broker.offset(key)) { // else a copy of a master's table has come over it
                    changedHere.add(key);
                }
            });
        }
        final int[] counts = new int[3]; // taken over, equal, to be sent
        for (final Map.Entry<Key, Standing> entry : there.entrySet()) {
            if (mirrors(entry.getKey())) {
                compare(entry.getKey(), entry.getValue(), by, changedHere.contains(entry.getKey()), counts);
            }
        }
        for (final Key key : broker.keys()) {
            if (mirrors(key) && !there.containsKey(key)) {
                final long to = toEnd(key, broker.offset(key));
                if (to != broker.offset(key)) {
                    broker.reset(key, to);
                }
                note(key, false, false);
                counts[2]++;
            }
        }
        synchronized (lock) {
            reconciled = comparison == comparisons;
        }
        mark();
        nextScanMs = clockMs.getAsLong() + scanEveryMs;
        say(String.format("compared with the adapter in %.0f ms (%s): %d taken over, %d equal, %d sent to it", (System.nanoTime() - began) / 1e6,
            by == Rule.BROKER ? "the broker has run without the plugin, so its file stands" : by == Rule.LARGER ? "the larger of both stands" : "promoted, so the adapter stands",
            counts[0], counts[1], counts[2]));
    }

    private void compare(final Key key, final Standing there, final Rule by, final boolean changedHere, final int[] counts) {
        final long here = broker.offset(key);
        final long epoch = started || by == Rule.ADAPTER ? knownEpoch(key) : marker.epoch(key);
        if (there.deleted) {
            know(key, there, here >= 0);
            if (here < 0) {
                return;
            }
            if (by != Rule.BROKER && epoch > 0 && there.epoch > epoch && !changedHere) {
                LOG.warn("offset-adapter: {}: was deleted in the adapter, and so here", key);
                broker.remove(key);
                know(key, there, false);
                counts[0]++;
                return;
            }
            note(key, false, false);
            counts[2]++;
            return;
        }
        final boolean raised = by != Rule.BROKER && here >= 0 && epoch > 0 && there.epoch > epoch;
        final boolean adapterStands = here < 0 || raised || !changedHere && (by == Rule.ADAPTER || by == Rule.LARGER && there.offset > here);
        if (raised && here != there.offset) {
            resetHere(key, there);
            counts[0]++;
        } else if (adapterStands && here != there.offset) {
            counts[0] += adopt(key, there) ? 1 : 0;
        } else {
            final long to = toEnd(key, here);
            if (to != here) {
                broker.reset(key, to);
            }
            know(key, there, true);
            if (to != there.offset) {
                note(key, false, false);
            }
            counts[to != there.offset ? 2 : 1]++;
        }
    }

    private long knownEpoch(final Key key) {
        final Known of = known.get(key);
        return of != null ? of.standing.epoch : marker.epoch(key);
    }

    /** Adds what the Meta Service has of the groups of this broker, where the sidecar lacks it: after a move, or after a lost disk. */
    private void askStore(final Map<Key, Standing> there) throws SidecarException {
        final List<String> groups = new ArrayList<>(broker.groups());
        for (int at = 0; at < groups.size(); at += GROUPS_AT_ONCE) {
            final List<String> some = groups.subList(at, Math.min(groups.size(), at + GROUPS_AT_ONCE));
            try {
                addStored(there, some);
            } catch (SidecarException e) {
                if (e.absent) {
                    failed("the Meta Service could not be asked; the sidecar's own offsets are taken", e.getMessage());
                    return;
                }
                for (final String group : some) {
                    try {
                        addStored(there, Collections.singletonList(group));
                    } catch (SidecarException of) {
                        failed("group " + group + " could not be read from the Meta Service", of.getMessage());
                    }
                }
            }
        }
    }

    private void addStored(final Map<Key, Standing> there, final Collection<String> groups) throws SidecarException {
        sidecar.read(groups, true).forEach((key, standing) -> there.merge(key, standing, (a, b) -> b.above(a) ? b : a));
    }

    /** Takes an offset into the table, at most the end of its queue. False if it is not one of this broker's queues and logs. */
    private boolean adopt(final Key key, final Standing standing) {
        final long end = endAtStart(key);
        if (end == Broker.NONE) {
            know(key, standing, false);
            return false;
        }
        if (reconciled && standing.offset > end) {
            // No consumer of this log has come that far: it is an offset of another one, before the broker got an empty disk or the
            // topic was made anew. Whoever began at it, or at the present end, would skip messages. What stands here is sent.
            LOG.warn("offset-adapter: {}: offset {} is beyond the end of the queue, {}, and not taken", key, standing.offset, end);
            know(key, standing, broker.offset(key) >= 0);
            if (broker.offset(key) >= 0) {
                note(key, false, false);
            }
            return false;
        }
        final long to = toEnd(key, standing.offset);
        if (broker.offset(key) >= 0 && to < broker.offset(key)) {
            broker.reset(key, to);
        } else {
            broker.adopt(key, to);
        }
        adopted.incrementAndGet();
        know(key, standing, true);
        if (to != standing.offset && end > 0) {
            note(key, false, false);
        } else if (to != standing.offset) {
            known.get(key).left = true;
        }
        return true;
    }

    /**
     * An offset beyond the end of its queue: the log lost its end in a power cut, and new messages will get the offsets of lost ones.
     * The end when the broker started counts, since messages have come after it.
     */
    private long toEnd(final Key key, final long offset) {
        final long end = endAtStart(key);
        if (end < 0 || offset <= end) {
            return offset;
        }
        LOG.warn("offset-adapter: {}: offset {} is beyond the end of the queue, {}; the end is taken", key, offset, end);
        clamped.incrementAndGet();
        return end;
    }

    /** The end of a queue when the broker started; of a queue that is newer its present end. */
    private long endAtStart(final Key key) {
        final Long end = reconciled ? null : endsAtStart.get(new Key("", key.topic, key.queue));
        return end != null ? end : broker.end(key);
    }

    private void rememberEnds() {
        final Map<Key, Long> ends = new HashMap<>();
        for (final Key queue : broker.queues()) {
            ends.put(queue, broker.end(queue));
        }
        endsAtStart = ends;
    }

    // ---- the scan

    private boolean takeScanDue() {
        synchronized (lock) {
            if (!scanSoon && clockMs.getAsLong() < nextScanMs) {
                return false;
            }
            scanSoon = false;
            return true;
        }
    }

    /** Notes what differs from the table without having been noted, what is gone from it, and what has not been sent for long. */
    private void scan() {
        final long began = System.nanoTime();
        final long now = clockMs.getAsLong();
        for (final Key key : broker.keys()) {
            if (mirrors(key)) {
                final Known of = known.get(key);
                if (of != null && of.left) {
                    continue;
                }
                if (of == null || of.standing.deleted || of.standing.offset != broker.offset(key) || now - of.sentMs >= TOUCH_MS) {
                    noteAnyway(key);
                }
            }
        }
        known.forEach((key, of) -> {
            if (of.here && !of.standing.deleted && broker.offset(key) < 0) {
                noteAnyway(key);
            }
        });
        final long tookMs = (System.nanoTime() - began) / 1_000_000;
        nextScanMs = clockMs.getAsLong() + Math.max(scanEveryMs, 10 * tookMs);
    }

    private void noteAnyway(final Key key) {
        synchronized (lock) {
            if (!dirty.containsKey(key)) {
                dirty.put(key, new Note());
            }
        }
    }

    // ---- small things

    /** What belongs to the broker itself stays with it, and what the adapter cannot name. */
    boolean mirrors(final Key key) {
        if (known.containsKey(key)) {
            return true;
        }
        if (MixAll.isSysConsumerGroup(key.group) || TopicValidator.isSystemTopic(key.topic)) {
            return false;
        }
        final String problem = key.problem(broker.name());
        if (problem != null && refusedNames.size() < MISSES_MAX && refusedNames.add(key)) {
            refused.incrementAndGet();
            LOG.warn("offset-adapter: not kept in the adapter: {}", problem);
        }
        return problem == null;
    }

    private boolean unchanged(final Key key) {
        final Known of = known.get(key);
        return of != null && !of.standing.deleted && of.standing.offset == broker.offset(key);
    }

    private void know(final Key key, final Standing standing, final boolean here) {
        final Known of = new Known();
        of.standing = standing;
        of.here = here;
        of.sentMs = clockMs.getAsLong();
        known.put(key, of);
    }

    private Map<Key, Standing> standings() {
        final Map<Key, Standing> all = new HashMap<>();
        known.forEach((key, of) -> all.put(key, of.standing));
        return all;
    }

    private void mark() {
        if (started && active && reconciled) {
            try {
                marker.running(standings());
            } catch (IOException e) {
                failed("the marker is not written", e.toString());
            }
        }
    }

    private void answered(final int offsets) {
        if (!answering) {
            answering = true;
            say("the sidecar at " + settings.address + " answers");
        }
        requests.incrementAndGet();
        sent.addAndGet(offsets);
    }

    /** Nobody answers: whoever waits is told, and what has changed stays noted. */
    private void absent(final String what, final SidecarException e) {
        failures.incrementAndGet();
        lastError = e.getMessage();
        if (answering) {
            LOG.warn("offset-adapter: {}: {}", what, e.getMessage());
        }
        answering = false;
        final List<CompletableFuture<Void>> waiting = new ArrayList<>();
        synchronized (lock) {
            dirty.values().forEach(note -> {
                if (note.done != null) {
                    waiting.add(note.done);
                    note.done = null;
                }
            });
        }
        waiting.forEach(done -> done.completeExceptionally(e));
    }

    private void failed(final String what, final String why) {
        failures.incrementAndGet();
        lastError = what + ": " + why;
        LOG.warn("offset-adapter: {}: {}", what, why);
    }

    private static void say(final String what) {
        LOG.info("offset-adapter: {}", what);
        System.out.println("offset-adapter: " + what);
    }
}
