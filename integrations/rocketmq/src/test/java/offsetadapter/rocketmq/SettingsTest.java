package offsetadapter.rocketmq;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.util.Properties;
import org.junit.Test;

public class SettingsTest {
    private static Settings of(final String... pairs) {
        final Properties lines = new Properties();
        for (int at = 0; at < pairs.length; at += 2) {
            lines.setProperty(pairs[at], pairs[at + 1]);
        }
        return Settings.of(lines);
    }

    private static void assertRefused(final String says, final String... pairs) {
        final String text = assertThrows(IllegalArgumentException.class, () -> of(pairs)).getMessage();
        assertTrue(text, text.contains(says));
    }

    /** Without an address the plugin does nothing. */
    @Test
    public void withoutAnAddressItIsOff() {
        assertNull(of("brokerName", "broker-a"));
    }

    /** The defaults never stop a broker. */
    @Test
    public void theDefaults() {
        final Settings settings = of(Settings.ADDRESS, "unix:/run/a.sock");
        assertEquals(Settings.Ack.ASYNC, settings.ack);
        assertEquals(Settings.Absent.CONTINUE, settings.absent);
        assertEquals(10_000, settings.startWaitMs);
        assertEquals("", settings.logAddress);
    }

    /** A bad line is refused by its name, with what it may be. */
    @Test
    public void badLinesAreRefusedByName() {
        assertRefused("offsetAdapterAck: 'synk' is not async or sync", Settings.ADDRESS, "127.0.0.1:9520", Settings.ACK, "synk");
        assertRefused("offsetAdapterAbsent: 'x' is not continue or refuse", Settings.ADDRESS, "127.0.0.1:9520", Settings.ABSENT, "x");
        assertRefused("offsetAdapterAddress: 'unix:a.sock'", Settings.ADDRESS, "unix:a.sock");
        assertRefused("offsetAdapterAddress: '127.0.0.1:70000'", Settings.ADDRESS, "127.0.0.1:70000");
        assertRefused("offsetAdapterLogAddress: '9531'", Settings.ADDRESS, "127.0.0.1:9520", Settings.LOG_ADDRESS, "9531");
        assertRefused("offsetAdapterStartWaitMs: '-1'", Settings.ADDRESS, "127.0.0.1:9520", Settings.START_WAIT_MS, "-1");
        assertRefused("offsetAdapterAdress: no such setting", "offsetAdapterAdress", "127.0.0.1:9520");
    }
}
