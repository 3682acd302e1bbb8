package offsetadapter.rocketmq;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Collections;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

public class MarkerTest {
    private static final Key Q = new Key("g", "T", 3);

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private long clock = 1_000_000;

    private Marker marker() throws IOException {
        return new Marker(folder.getRoot().getPath());
    }

    private void touch(final String name) throws IOException {
        final File file = new File(folder.getRoot(), name);
        assertTrue(file.getParentFile().isDirectory() || file.getParentFile().mkdirs());
        Files.write(file.toPath(), "1".getBytes(StandardCharsets.UTF_8));
        clock += 1_000;
        assertTrue(file.setLastModified(clock));
    }

    private void begin() throws IOException {
        touch("abort");
    }

    private void end() throws IOException {
        touch("config/consumerOrderInfo.json");
        Files.deleteIfExists(new File(folder.getRoot(), "abort").toPath());
    }

    /** A broker that has never had the plugin has run without it. */
    @Test
    public void theFirstTimeIsForeign() throws IOException {
        assertTrue(marker().foreign());
        assertEquals(0, marker().epoch(Q));
    }

    /** A broker with the plugin that was killed has not run without it. */
    @Test
    public void aKilledBrokerIsRecognised() throws IOException {
        final Marker marker = marker();
        begin();
        marker.running(Collections.emptyMap());
        touch("config/consumerOrderInfo.json"); // it writes this now and then as well
        assertFalse(marker().foreign());
    }

    /** Nor has one that has ended well. */
    @Test
    public void aStoppedBrokerIsRecognised() throws IOException {
        final Marker marker = marker();
        begin();
        marker.running(Collections.emptyMap());
        end();
        marker.stopped(Collections.emptyMap());
        assertFalse(marker().foreign());
    }

    /** A stock broker in between is noticed: killed or ended, after a broker with the plugin that was killed or has ended. */
    @Test
    public void aStockBrokerInBetweenIsNoticed() throws IOException {
        for (final boolean killedBefore : new boolean[] {true, false}) {
            for (final boolean killedStock : new boolean[] {true, false}) {
                begin();
                final Marker marker = marker();
                marker.running(Collections.emptyMap());
                if (!killedBefore) {
                    end();
                    marker.stopped(Collections.emptyMap());
                }
                assertFalse(marker().foreign());
                begin();
                if (!killedStock) {
                    end();
                }
                assertTrue(killedBefore + " " + killedStock, marker().foreign());
            }
        }
    }

    /** A run in which the sidecar never answered is one without the plugin: nothing of it is in the adapter. */
    @Test
    public void aRunWithoutTheSidecarIsForeign() throws IOException {
        begin();
        marker().running(Collections.emptyMap());
        begin();
        marker().save("2\tg\tT\t3\n");
        assertTrue(marker().foreign());
    }

    /** Epochs above the first are remembered; keys that are not listed are in the first. */
    @Test
    public void epochsAreRemembered() throws IOException {
        final Marker marker = marker();
        begin();
        marker.running(Collections.singletonMap(Q, Standing.live(7, 100)));
        assertEquals(7, marker().epoch(Q));
        assertEquals(1, marker().epoch(new Key("g", "T", 4)));
        marker.save(Marker.epochs(Collections.singletonMap(Q, Standing.live(1L << 32, 5))));
        assertEquals(1L << 32, marker().epoch(Q));
        assertFalse(marker().foreign());
    }

    /** A file that nobody can read stops nothing: nothing is known then. */
    @Test
    public void garbageIsNoMarker() throws IOException {
        begin();
        marker().running(Collections.emptyMap());
        final File file = new File(folder.getRoot(), "config/offsetAdapter");
        Files.write(file.toPath(), "running\nwhat\n".getBytes(StandardCharsets.UTF_8));
        assertTrue(marker().foreign());
        assertEquals(0, marker().epoch(Q));
    }
}
