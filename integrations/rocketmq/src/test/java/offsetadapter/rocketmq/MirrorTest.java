package offsetadapter.rocketmq;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.Collections;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

public class MirrorTest {
    private static final Key Q = new Key("g", "T", 0);
    private static final Key OTHER = new Key("g", "T", 1);
    private static final long ERA = 1L << 32;

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private final FakeSidecar sidecar = new FakeSidecar();
    private final AtomicLong clock = new AtomicLong(1_000_000);
    private final Properties lines = new Properties();
    private FakeBroker broker = new FakeBroker();
    private Mirror mirror;

    @Before
    public void settings() {
        lines.setProperty(Settings.ADDRESS, "127.0.0.1:9520");
        lines.setProperty(Settings.START_WAIT_MS, "0");
        broker.ends.put("T/0", 1_000L);
        broker.ends.put("T/1", 1_000L);
    }

    /** A life of the broker, as its master, with the plugin. */
    private void start() throws Exception {
        mirror = new Mirror(broker, sidecar, new Marker(folder.getRoot().getPath()), Settings.of(lines), clock::get);
        mirror.active(true);
        mirror.start();
        abort();
        mirror.started();
    }

    /** What every broker does when it starts. */
    private void abort() throws IOException {
        final File abort = new File(folder.getRoot(), "abort");
        Files.write(abort.toPath(), String.valueOf(System.nanoTime()).getBytes());
        assertTrue(abort.setLastModified(clock.addAndGet(1_000)));
    }

    private void startedAfterThePlugin() throws Exception {
        start();
        mirror.persisting(() -> { });
    }

    private void commit(final Key key, final long offset) {
        broker.table.put(key, offset);
        mirror.note(key, false, false);
    }

    private void store(final Key key, final long epoch, final long offset) {
        sidecar.rows.put(key, Standing.live(epoch, offset));
    }

    private void assertStands(final Key key, final long epoch, final long offset) {
        assertEquals("epoch", epoch, sidecar.rows.get(key).epoch);
        assertEquals("offset", offset, sidecar.rows.get(key).offset);
        assertFalse("deleted", sidecar.rows.get(key).deleted);
    }

    // ---- commits

    /** A request has the newest offset of each queue, once. */
    @Test
    public void aRequestHasTheNewestOffsetOfEachQueue() throws Exception {
        start();
        for (long offset = 1; offset <= 100; offset++) {
            commit(Q, offset);
            commit(OTHER, offset);
        }
        mirror.step();
        assertEquals(Collections.singletonList(2), sidecar.requests);
        assertStands(Q, 1, 100);
    }

    /** More keys than one request takes are sent in several. */
    @Test
    public void aBatchIsBounded() throws Exception {
        start();
        for (int queue = 0; queue <= Mirror.BATCH; queue++) {
            commit(new Key("g", "T", queue), 5);
        }
        mirror.step();
        mirror.step();
        assertEquals(Arrays.asList(Mirror.BATCH, 1), sidecar.requests);
    }

    /** An offset that went back in the table goes back in the adapter, in the next epoch. */
    @Test
    public void aRewindIsARewind() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        commit(Q, 40);
        mirror.step();
        assertStands(Q, 2, 40);
        commit(Q, 50);
        mirror.step();
        assertStands(Q, 2, 50);
    }

    /** A rewind whose answer was lost is this broker's own: it is not taken for somebody else's reset. */
    @Test
    public void aRewindWhoseAnswerWasLostIsNotAForeignReset() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        commit(Q, 40);
        sidecar.losesAnswers = true;
        mirror.step();
        sidecar.losesAnswers = false;
        commit(Q, 45);
        mirror.step();
        mirror.step();
        assertEquals(Collections.emptySet(), broker.resets);
        assertEquals(45, broker.offset(Q));
        assertStands(Q, 2, 45);
    }

    /** Two commits that race are sent in the order that the table has, not in that of their notes. */
    @Test
    public void theTableDecidesNotTheOrderOfNotes() throws Exception {
        start();
        broker.table.put(Q, 11L);
        mirror.note(Q, false, false);
        mirror.note(Q, false, false); // the one that was overtaken
        mirror.step();
        assertStands(Q, 1, 11);
    }

    /** A commit that arrives while its queue is being sent is sent in the next request. */
    @Test
    public void aCommitDuringARequestIsNotLost() throws Exception {
        start();
        commit(Q, 1);
        sidecar.losesAnswers = true;
        mirror.step();
        sidecar.losesAnswers = false;
        commit(Q, 2);
        mirror.step();
        assertStands(Q, 1, 2);
        assertEquals(0, mirror.dirtyCount());
    }

    /** An offset that goes back, during a request, to what the adapter had before that request is sent again. */
    @Test
    public void anOffsetThatReturnsDuringARequestIsSent() throws Exception {
        start();
        commit(Q, 10);
        mirror.step();
        commit(Q, 11);
        sidecar.meanwhile = () -> {
            sidecar.meanwhile = () -> { };
            commit(Q, 10);
        };
        mirror.step();
        mirror.step();
        assertStands(Q, 2, 10);
    }

    /** Offsets of the broker's own services, and names that the adapter does not take, stay with the broker. */
    @Test
    public void whatTheAdapterCannotNameStaysHere() throws Exception {
        start();
        commit(new Key("CID_RMQ_SYS_TRANS", "T", 0), 5);
        commit(new Key("g", "RMQ_SYS_TRANS_HALF_TOPIC", 0), 5);
        commit(new Key("g", "a/b", 0), 5);
        commit(Q, 5);
        mirror.step();
        assertEquals(Collections.singleton(Q), sidecar.rows.keySet());
        assertEquals("only names are counted", 1, mirror.refused.get());
    }

    /** A group that the adapter refuses does not keep others from being stored. */
    @Test
    public void aRefusedGroupDoesNotHoldUpOthers() throws Exception {
        start();
        sidecar.refusedGroups.add("bad");
        commit(new Key("bad", "T", 0), 5);
        commit(Q, 5);
        mirror.step();
        assertStands(Q, 1, 5);
        assertEquals(0, mirror.dirtyCount());
        assertEquals(1, mirror.refused.get());
    }

    /** An unchanged offset is not sent, until it would come near to its expiry. */
    @Test
    public void unchangedOffsetsAreTouchedNowAndThen() throws Exception {
        start();
        commit(Q, 5);
        mirror.step();
        commit(Q, 5);
        mirror.step();
        assertEquals(1, sidecar.commits);
        clock.addAndGet(Mirror.TOUCH_MS);
        mirror.step(); // nobody commits
        assertEquals(2, sidecar.commits);
    }

    /** What was changed without a note, and what is gone without one, is found by the scan. */
    @Test
    public void theScanFindsWhatWasNotNoted() throws Exception {
        start();
        commit(Q, 5);
        commit(OTHER, 5);
        mirror.step();
        broker.table.put(Q, 9L);
        broker.table.remove(OTHER);
        mirror.deleting("g", null);
        mirror.scanSoon();
        mirror.step();
        assertStands(Q, 1, 9);
        assertTrue(sidecar.rows.get(OTHER).deleted);
    }

    /** What a query takes out of the table (apache/rocketmq 10987) is no delete: it stays in the adapter, and is given back. */
    @Test
    public void whatTheBrokerForgetsIsGivenBack() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        broker.table.remove(Q);
        mirror.scanSoon();
        mirror.step();
        assertStands(Q, 1, 100);
        assertEquals(100, broker.offset(Q));
        assertEquals(1, mirror.forgotten.get());
        commit(Q, 101);
        mirror.step();
        assertStands(Q, 1, 101);
    }

    /** The end of a light queue is not known, so it is not given back before a consumer asks for it. */
    @Test
    public void aLightQueueThatTheBrokerForgetsIsKeptUntilAConsumerAsks() throws Exception {
        final Key light = new Key("g", "%LMQ%q", 0);
        broker.ends.put("%LMQ%q/0", Long.MAX_VALUE);
        start();
        commit(light, 100);
        mirror.step();
        broker.table.remove(light);
        mirror.scanSoon();
        mirror.step();
        assertStands(light, 1, 100);
        assertEquals(Broker.NONE, broker.offset(light));
        assertEquals(100, mirror.missing(light));
    }

    /** A group or topic that the broker knows no longer was deleted, also where no call told of it (5.0 to 5.3.1). */
    @Test
    public void whatIsGoneWithItsGroupOrTopicIsDeleted() throws Exception {
        for (final String gone : Arrays.asList("g", "T")) {
            broker = new FakeBroker();
            settings();
            start();
            commit(Q, 100);
            mirror.step();
            broker.table.remove(Q);
            broker.deleted.add(gone);
            mirror.scanSoon();
            mirror.step();
            assertTrue(gone, sidecar.rows.get(Q).deleted);
        }
    }

    /** A delete is of what was there then: what is committed and forgotten afterwards is none. */
    @Test
    public void aDeleteIsNotRememberedForLaterOffsets() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        mirror.deleting(null, "T");
        commit(Q, 101);
        mirror.step();
        broker.table.remove(Q);
        mirror.scanSoon();
        mirror.step();
        assertStands(Q, 1, 101);
        assertEquals(101, broker.offset(Q));
    }

    /** A former master deletes nothing: its table is a copy now. */
    @Test
    public void aFormerMasterDeletesNothing() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        broker.table.remove(Q);
        broker.deleted.add("T");
        mirror.note(Q, false, false);
        mirror.active(false);
        mirror.step();
        assertStands(Q, 1, 100);
    }

    // ---- the sidecar is absent

    /** Without a sidecar at the start the broker starts; what changed meanwhile stands when the sidecar comes, and the rest is compared. */
    @Test
    public void theSidecarMayComeLater() throws Exception {
        startedAfterThePlugin();
        broker.table.put(Q, 60L);
        broker.table.put(OTHER, 60L);
        store(Q, 1, 100);
        store(OTHER, 1, 100);
        sidecar.absent = true;
        start();
        assertEquals("not compared yet", mirror.state());
        commit(Q, 70);
        mirror.step();
        assertEquals(70, broker.offset(Q));
        sidecar.absent = false;
        mirror.step();
        mirror.step();
        assertStands(Q, 2, 70); // a consumer has committed it since: it counts, and is behind
        assertEquals(100, broker.offset(OTHER));
        assertEquals("serving", mirror.state());
    }

    /** A sidecar that is absent for a while has everything afterwards. */
    @Test
    public void nothingIsLostWhileTheSidecarIsAbsent() throws Exception {
        start();
        commit(Q, 5);
        mirror.step();
        sidecar.absent = true;
        commit(Q, 9);
        mirror.step();
        assertEquals("absent", mirror.state());
        commit(Q, 12);
        commit(OTHER, 3);
        sidecar.absent = false;
        mirror.step();
        assertStands(Q, 1, 12);
        assertStands(OTHER, 1, 3);
        assertEquals(0, mirror.dirtyCount());
    }

    /** With `continue` a commit that the sidecar does not have is acknowledged, and counted. */
    @Test
    public void continueAcknowledgesWithoutTheSidecar() throws Exception {
        start();
        sidecar.absent = true;
        broker.table.put(Q, 9L);
        final CompletableFuture<Void> done = mirror.note(Q, false, true);
        mirror.step();
        mirror.await(done);
        assertEquals(1, mirror.unacknowledged.get());
        mirror.check();
    }

    /** With `refuse` such a commit is an error, and so is each one while the sidecar is known to be absent. */
    @Test
    public void refuseMakesItAnError() throws Exception {
        lines.setProperty(Settings.ABSENT, "refuse");
        start();
        sidecar.absent = true;
        broker.table.put(Q, 9L);
        final CompletableFuture<Void> done = mirror.note(Q, false, true);
        mirror.step();
        assertThrows(IllegalStateException.class, () -> mirror.await(done));
        assertThrows(IllegalStateException.class, () -> mirror.check());
        sidecar.absent = false;
        mirror.step();
        mirror.check();
    }

    /** A commit is acknowledged when the sidecar has it, not before. */
    @Test
    public void syncWaitsForTheSidecar() throws Exception {
        start();
        broker.table.put(Q, 9L);
        final CompletableFuture<Void> done = mirror.note(Q, false, true);
        assertNotNull(done);
        assertFalse(done.isDone());
        mirror.step();
        assertTrue(done.isDone());
        assertNull("unchanged: the sidecar has it", mirror.note(Q, false, true));
    }

    // ---- the start

    /** At the start the larger of both stands, on both sides. */
    @Test
    public void theLargerStands() throws Exception {
        startedAfterThePlugin();
        broker = new FakeBroker();
        settings();
        broker.table.put(Q, 60L);
        broker.table.put(OTHER, 200L);
        store(Q, 1, 100);
        store(OTHER, 1, 150);
        start();
        mirror.step();
        assertEquals(100, broker.offset(Q));
        assertStands(OTHER, 1, 200);
    }

    /** An offset that only the adapter has is taken over: the broker's file was lost. */
    @Test
    public void aLostFileComesBack() throws Exception {
        store(Q, 1, 100);
        start();
        mirror.step();
        assertEquals(100, broker.offset(Q));
        assertStands(Q, 1, 100);
    }

    /** Where the sidecar's disk was lost as well, the Meta Service has the offsets of groups that exist here. */
    @Test
    public void theMetaServiceIsAsked() throws Exception {
        broker.subscribed.add("g");
        sidecar.stored.put(Q, Standing.live(1, 100));
        start();
        assertEquals(100, broker.offset(Q));
    }

    /** A queue that the table lacks is asked for in the Meta Service when a consumer asks. */
    @Test
    public void aMissIsAskedFor() throws Exception {
        start();
        sidecar.stored.put(Q, Standing.live(1, 100));
        assertEquals(100, mirror.missing(Q));
        assertEquals(100, broker.offset(Q));
        assertEquals(Broker.NONE, mirror.missing(OTHER));
        sidecar.stored.put(OTHER, Standing.live(1, 7));
        assertEquals("asked a moment ago", Broker.NONE, mirror.missing(OTHER));
    }

    /** A broker on an empty disk, a topic that was made anew: an offset of the former log would skip messages of this one. */
    @Test
    public void anOffsetOfAnotherLogIsNotTaken() throws Exception {
        broker.ends.clear();
        start();
        broker.ends.put("T/0", 500L);
        sidecar.stored.put(Q, Standing.live(1, 900));
        assertEquals(Broker.NONE, mirror.missing(Q));
        assertEquals(Broker.NONE, broker.offset(Q));
        store(Q, 1, 900);
        commit(Q, 20);
        mirror.step();
        assertEquals(20, broker.offset(Q));
        assertStands(Q, 2, 20);
    }

    /** After a time without the plugin the broker's file stands, also where its offsets are lower. */
    @Test
    public void afterATimeWithoutThePluginTheFileStands() throws Exception {
        startedAfterThePlugin();
        commit(Q, 100);
        mirror.step();
        mirror.persisting(() -> { });
        abort(); // a stock broker has started since
        broker.table.put(Q, 40L); // and has been reset
        start();
        mirror.step();
        assertEquals(40, broker.offset(Q));
        assertStands(Q, 2, 40);
    }

    /** Nor does a reset or delete in the adapter reach a broker that ran without the plugin: it has gone on since. */
    @Test
    public void afterATimeWithoutThePluginNoResetIsTaken() throws Exception {
        startedAfterThePlugin();
        commit(Q, 100);
        commit(OTHER, 100);
        mirror.step();
        mirror.persisting(() -> { });
        abort();
        sidecar.resetByOther(Q, 40);
        sidecar.deleteByOther(OTHER);
        broker.table.put(Q, 120L);
        start();
        mirror.step();
        assertStands(Q, ERA, 120);
        assertEquals(100, broker.offset(OTHER));
        assertFalse(sidecar.rows.get(OTHER).deleted);
    }

    /** The first time with the plugin is such a time: an old import does not move the broker forward. */
    @Test
    public void theFirstTimeTheFileStands() throws Exception {
        broker.table.put(Q, 40L);
        store(Q, 1, 100);
        start();
        mirror.step();
        assertEquals(40, broker.offset(Q));
        assertStands(Q, 2, 40);
    }

    /** A reset in the adapter while the broker was down stands, though its offset is lower. */
    @Test
    public void aResetWhileTheBrokerWasDownStands() throws Exception {
        startedAfterThePlugin();
        commit(Q, 100);
        mirror.step();
        mirror.persisting(() -> { });
        sidecar.resetByOther(Q, 40);
        start();
        assertEquals(40, broker.offset(Q));
        mirror.step();
        assertStands(Q, ERA, 40);
    }

    /** A reset that the broker's file has is not applied again: what was committed since stands. */
    @Test
    public void aResetIsAppliedOnce() throws Exception {
        startedAfterThePlugin();
        commit(Q, 100);
        mirror.step();
        sidecar.resetByOther(Q, 40);
        mirror.resync();
        mirror.step();
        commit(Q, 60);
        mirror.persisting(() -> { });
        start();
        mirror.step();
        assertEquals(60, broker.offset(Q));
        assertStands(Q, ERA, 60);
    }

    /** A delete in the adapter while the broker was down is a delete here. */
    @Test
    public void aDeleteWhileTheBrokerWasDownStands() throws Exception {
        startedAfterThePlugin();
        commit(Q, 100);
        mirror.step();
        mirror.persisting(() -> { });
        sidecar.deleteByOther(Q);
        start();
        mirror.step();
        assertEquals(Broker.NONE, broker.offset(Q));
        assertTrue(sidecar.rows.get(Q).deleted);
    }

    // ---- the log

    /** After a power cut the log may end below an offset: the end is taken on both sides, so that new messages are delivered. */
    @Test
    public void anOffsetBeyondTheLogIsTakenBackToItsEnd() throws Exception {
        startedAfterThePlugin();
        broker.ends.put("T/0", 50L);
        broker.table.put(Q, 60L);
        store(Q, 1, 100);
        start();
        mirror.step();
        assertEquals(50, broker.offset(Q));
        assertStands(Q, 2, 50);
        assertTrue(mirror.clamped.get() > 0);
    }

    /** The end at the start counts, also if messages came before the sidecar did. */
    @Test
    public void theEndAtTheStartCounts() throws Exception {
        startedAfterThePlugin();
        broker.ends.put("T/0", 50L);
        store(Q, 1, 100);
        sidecar.absent = true;
        start();
        broker.ends.put("T/0", 500L);
        sidecar.absent = false;
        mirror.step();
        mirror.step();
        assertEquals(50, broker.offset(Q));
    }

    /** An empty disk does not destroy what the adapter has, until a consumer commits. */
    @Test
    public void anEmptyQueueLeavesTheAdapterAlone() throws Exception {
        broker.ends.put("T/0", 0L);
        store(Q, 1, 100);
        start();
        mirror.step();
        clock.addAndGet(2 * Mirror.TOUCH_MS);
        mirror.step();
        assertEquals(0, broker.offset(Q));
        assertStands(Q, 1, 100);
        broker.ends.put("T/0", 10L);
        commit(Q, 3);
        mirror.step();
        assertStands(Q, 2, 3);
    }

    /** A topic that this broker does not have is not made here, and not deleted there. */
    @Test
    public void aTopicThatIsNotHereStaysThere() throws Exception {
        final Key elsewhere = new Key("g", "U", 0);
        store(elsewhere, 1, 100);
        start();
        mirror.scanSoon();
        mirror.step();
        assertEquals(Broker.NONE, broker.offset(elsewhere));
        assertStands(elsewhere, 1, 100);
    }

    // ---- resets and deletes, here and there

    /** A reset at the broker is a reset in the adapter: the next era. */
    @Test
    public void aResetHereIsAResetThere() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        broker.table.put(Q, 40L);
        mirror.note(Q, true, false);
        mirror.step();
        assertStands(Q, ERA, 40);
        commit(Q, 41);
        mirror.step();
        assertStands(Q, ERA, 41);
    }

    /** Where the adapter does not let the broker reset, the reset is committed as a rewind. */
    @Test
    public void aResetThatIsDeniedIsARewind() throws Exception {
        start();
        sidecar.deniesAdmin = true;
        commit(Q, 100);
        mirror.step();
        broker.table.put(Q, 40L);
        mirror.note(Q, true, false);
        mirror.step();
        assertStands(Q, 2, 40);
    }

    /** A reset in the adapter reaches the table, and a commit from before it does not undo it. */
    @Test
    public void aResetThereReachesTheTable() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        sidecar.resetByOther(Q, 40);
        commit(Q, 101); // by a consumer that does not know
        mirror.step();
        mirror.step();
        assertEquals(40, broker.offset(Q));
        assertTrue(broker.resets.contains(Q));
        assertStands(Q, ERA, 40);
    }

    /** An idle broker learns of it from the watch. */
    @Test
    public void theWatchTellsAnIdleBroker() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        sidecar.resetByOther(Q, 40);
        sidecar.watcher.changed(Collections.singletonMap(Q, sidecar.rows.get(Q)));
        mirror.step();
        assertEquals(40, broker.offset(Q));
    }

    /** What a watch tells of this broker's own changes changes nothing. */
    @Test
    public void theWatchTellsOwnChangesToo() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        broker.table.put(Q, 40L);
        mirror.note(Q, true, false);
        mirror.step();
        commit(Q, 45);
        mirror.step();
        sidecar.watcher.changed(Collections.singletonMap(Q, Standing.live(ERA, 40)));
        mirror.step();
        assertEquals(45, broker.offset(Q));
        assertEquals(Collections.emptySet(), broker.resets);
    }

    /** A watch that has ended begins again, and lists everything. */
    @Test
    public void aWatchThatEndedBeginsAgain() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        sidecar.watcher.ended("UNAVAILABLE");
        sidecar.watcher = null;
        sidecar.resetByOther(Q, 40);
        clock.addAndGet(10_000);
        mirror.step();
        assertNotNull(sidecar.watcher);
        sidecar.watcher.resync();
        mirror.step();
        assertEquals(40, broker.offset(Q));
    }

    /** A delete in the adapter is a delete here. */
    @Test
    public void aDeleteThereIsADeleteHere() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        sidecar.deleteByOther(Q);
        mirror.resync();
        mirror.step();
        assertEquals(Broker.NONE, broker.offset(Q));
        commit(Q, 3); // a consumer begins again
        mirror.step();
        assertEquals(3, sidecar.rows.get(Q).offset);
        assertFalse(sidecar.rows.get(Q).deleted);
    }

    /** What expired in the adapter, and yet stands here, is committed again. */
    @Test
    public void whatExpiredThereIsSentAgain() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        sidecar.rows.put(Q, new Standing(1, 100, true));
        mirror.resync();
        mirror.step();
        assertStands(Q, 1, 100);
        assertEquals(100, broker.offset(Q));
    }

    /** A larger offset of the same epoch is somebody else's commit, and stands. */
    @Test
    public void aLargerCommitOfAnotherConsumerStands() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        store(Q, 1, 300);
        commit(Q, 110);
        mirror.step();
        mirror.step();
        assertEquals(300, broker.offset(Q));
        assertStands(Q, 1, 300);
    }

    /** A delete that the adapter denies is not tried for ever, and does not hold up commits. */
    @Test
    public void aDeleteThatIsDeniedIsCounted() throws Exception {
        start();
        sidecar.deniesAdmin = true;
        commit(Q, 100);
        mirror.step();
        broker.table.remove(Q);
        broker.deleted.add("g");
        mirror.scanSoon();
        mirror.step();
        assertEquals(1, mirror.refused.get());
        assertEquals(0, mirror.dirtyCount());
    }

    /** A delete or rewind that has to wait for the Meta Service does not make the sidecar count as absent. */
    @Test
    public void theMetaServiceMayBeAbsent() throws Exception {
        start();
        commit(Q, 100);
        commit(OTHER, 100);
        mirror.step();
        sidecar.metaAbsent = true;
        commit(Q, 40);
        broker.table.remove(OTHER);
        mirror.deleting("g", null);
        mirror.scanSoon();
        mirror.step();
        assertEquals("serving", mirror.state());
        sidecar.metaAbsent = false;
        mirror.scanSoon();
        mirror.step();
        assertStands(Q, 2, 40);
        assertTrue(sidecar.rows.get(OTHER).deleted);
    }

    /** A sidecar that has lost its store is given what this broker has. */
    @Test
    public void aSidecarThatLostItsStoreIsFilledAgain() throws Exception {
        start();
        commit(Q, 100);
        mirror.step();
        sidecar.rows.clear();
        clock.addAndGet(Mirror.TOUCH_MS);
        mirror.step();
        assertStands(Q, 1, 100);
    }

    // ---- the pair

    /** A slave sends nothing. Promoted, it takes what the adapter has: its own copy of the master's table is old. */
    @Test
    public void aSlaveSendsNothingUntilItIsPromoted() throws Exception {
        mirror = new Mirror(broker, sidecar, new Marker(folder.getRoot().getPath()), Settings.of(lines), clock::get);
        assertTrue(mirror.start());
        mirror.started();
        broker.table.put(Q, 60L); // copied
        commit(OTHER, 70); // by a consumer whose master was away
        mirror.step();
        assertEquals("slave", mirror.state());
        assertEquals(0, sidecar.commits);
        store(Q, 1, 100);
        store(OTHER, 1, 50);
        mirror.active(true);
        mirror.step();
        mirror.step();
        assertEquals(100, broker.offset(Q));
        assertStands(OTHER, 1, 70);
    }

    /** A promoted slave takes the adapter's offset also where it is lower: the master was reset since the last copy. */
    @Test
    public void aPromotedSlaveTakesAReset() throws Exception {
        mirror = new Mirror(broker, sidecar, new Marker(folder.getRoot().getPath()), Settings.of(lines), clock::get);
        mirror.start();
        mirror.started();
        broker.table.put(Q, 60L);
        store(Q, ERA, 10);
        mirror.active(true);
        mirror.step();
        assertEquals(10, broker.offset(Q));
    }

    /** What a slave was told directly, and what a copy has come over since, does not count at its promotion. */
    @Test
    public void aCopyThatCameLaterCountsNotAsACommit() throws Exception {
        mirror = new Mirror(broker, sidecar, new Marker(folder.getRoot().getPath()), Settings.of(lines), clock::get);
        mirror.start();
        mirror.started();
        commit(Q, 70);
        broker.table.put(Q, 80L); // the master is back, and was copied
        store(Q, 1, 100);
        mirror.active(true);
        mirror.step();
        mirror.step();
        assertEquals(100, broker.offset(Q));
        assertStands(Q, 1, 100);
    }

    /** A promoted slave whose log is shorter than the master's was begins at its end. */
    @Test
    public void aPromotedSlaveWithAShorterLogBeginsAtItsEnd() throws Exception {
        broker.ends.put("T/0", 10L);
        mirror = new Mirror(broker, sidecar, new Marker(folder.getRoot().getPath()), Settings.of(lines), clock::get);
        mirror.start();
        mirror.started();
        broker.ends.put("T/0", 90L);
        store(Q, 1, 100);
        mirror.active(true);
        mirror.step();
        mirror.step();
        assertEquals(90, broker.offset(Q));
        assertStands(Q, 2, 90);
    }

    /** A former master sends what it still has, but never back: the new master may have gone there on purpose. */
    @Test
    public void aFormerMasterSendsOnlyForward() throws Exception {
        start();
        commit(Q, 100);
        commit(OTHER, 100);
        mirror.step();
        commit(Q, 110);
        commit(OTHER, 90);
        mirror.active(false);
        mirror.step();
        assertStands(Q, 1, 110);
        assertStands(OTHER, 1, 100);
        commit(Q, 120);
        mirror.step();
        assertStands(Q, 1, 110);
    }
}
