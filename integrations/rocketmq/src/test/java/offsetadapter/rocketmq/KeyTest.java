package offsetadapter.rocketmq;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import java.util.Collections;
import org.junit.Test;

public class KeyTest {
    private static Key of(final String shard) {
        return Key.of("broker-a", "g", shard);
    }

    /** A queue's shard is BROKER/TOPIC/QUEUE, and back. */
    @Test
    public void aShardIsNamedAsTheImporterDoes() {
        final Key key = new Key("g", "%RETRY%g", 3);
        assertEquals("broker-a/%RETRY%g/3", key.shard("broker-a"));
        assertEquals(key, of("broker-a/%RETRY%g/3"));
    }

    /** Shards of others are none of this broker's. */
    @Test
    public void shardsOfOthersAreLeftOut() {
        for (final String shard : new String[] {"T/0", "broker-b/T/0", "broker-a/0", "broker-a//0", "broker-a/T/x", "broker-a/T/-1",
            "broker-a/T/03", "broker-a/T/2147483648", "broker-a/a/b/0", "broker-ab/T/0", ""}) {
            assertNull(shard, of(shard));
        }
        assertEquals(Integer.MAX_VALUE, of("broker-a/T/2147483647").queue);
    }

    /** The adapter's rules for names are checked before a request is made, since one bad name refuses all of it. */
    @Test
    public void badNamesAreFoundHere() {
        final String half = String.join("", Collections.nCopies(128, "\u00e9"));
        assertNull(new Key("g", "T", 0).problem("broker-a"));
        assertNull(new Key(half.substring(1), "T", 0).problem("b"));
        assertTrue(new Key(half, "T", 0).problem("b").contains("256 bytes"));
        assertTrue(new Key("", "T", 0).problem("b").contains("empty"));
        assertTrue(new Key("a\tb", "T", 0).problem("b").contains("control character"));
        assertTrue(new Key("a\ud800b", "T", 0).problem("b").contains("surrogate"));
        assertNull(new Key("a\ud83d\ude00b", "T", 0).problem("b"));
        assertTrue(new Key("g", "a/b", 0).problem("b").contains("has a /"));
    }
}
