package offsetadapter.rocketmq;

import java.util.Properties;

/** The plugin's lines of broker.conf. A bad one stops the start of the broker, with its name and what it may be. */
final class Settings {
    /** What an answer to a consumer waits for: nothing, or the sidecar. */
    enum Ack { ASYNC, SYNC }

    /** What the broker does while the sidecar does not answer. */
    enum Absent { CONTINUE, REFUSE }

    static final String ADDRESS = "offsetAdapterAddress";
    static final String ACK = "offsetAdapterAck";
    static final String ABSENT = "offsetAdapterAbsent";
    static final String START_WAIT_MS = "offsetAdapterStartWaitMs";
    static final String LOG_ADDRESS = "offsetAdapterLogAddress";
    static final String TOKEN_FILE = "offsetAdapterTokenFile";

    /** unix:PATH or HOST:PORT. */
    final String address;
    final Ack ack;
    final Absent absent;
    /** With CONTINUE: how long the start of the broker waits for the sidecar, in milliseconds. */
    final long startWaitMs;
    /** HOST:PORT where BrokerLog is served; empty: nowhere. */
    final String logAddress;
    /** A file with the adapter's admin token, which resets and deletes over TCP need; empty: none. */
    final String tokenFile;

    private Settings(final Properties lines) {
        address = text(lines, ADDRESS, "");
        ack = word(lines, ACK, "async", "sync").equals("sync") ? Ack.SYNC : Ack.ASYNC;
        absent = word(lines, ABSENT, "continue", "refuse").equals("refuse") ? Absent.REFUSE : Absent.CONTINUE;
        startWaitMs = number(lines, START_WAIT_MS, 10_000, 0, 3_600_000);
        logAddress = text(lines, LOG_ADDRESS, "");
        tokenFile = text(lines, TOKEN_FILE, "");
        if (!address.startsWith("unix:/") && !hostAndPort(address)) {
            throw bad(ADDRESS, address, "unix:/ABSOLUTE/PATH or HOST:PORT");
        }
        if (!logAddress.isEmpty() && !hostAndPort(logAddress)) {
            throw bad(LOG_ADDRESS, logAddress, "HOST:PORT");
        }
    }

    /** Null if broker.conf has no address: the plugin does nothing then. Raises IllegalArgumentException. */
    static Settings of(final Properties lines) {
        for (final String name : lines.stringPropertyNames()) {
            if (name.startsWith("offsetAdapter") && !known(name)) {
                throw new IllegalArgumentException(name + ": no such setting; there are " + String.join(", ",
                    ADDRESS, ACK, ABSENT, START_WAIT_MS, LOG_ADDRESS, TOKEN_FILE));
            }
        }
        return text(lines, ADDRESS, "").isEmpty() ? null : new Settings(lines);
    }

    private static boolean known(final String name) {
        return name.equals(ADDRESS) || name.equals(ACK) || name.equals(ABSENT) || name.equals(START_WAIT_MS)
            || name.equals(LOG_ADDRESS) || name.equals(TOKEN_FILE);
    }

    static String host(final String address) {
        return address.substring(0, address.lastIndexOf(':'));
    }

    static int port(final String address) {
        return Integer.parseInt(address.substring(address.lastIndexOf(':') + 1));
    }

    private static boolean hostAndPort(final String address) {
        return address.matches("[^:/\\s]+:[0-9]{1,5}") && port(address) >= 1 && port(address) <= 65_535;
    }

    private static String text(final Properties lines, final String name, final String fallback) {
        return lines.getProperty(name, fallback).trim();
    }

    private static String word(final Properties lines, final String name, final String fallback, final String other) {
        final String value = text(lines, name, fallback);
        if (!value.equals(fallback) && !value.equals(other)) {
            throw bad(name, value, fallback + " or " + other);
        }
        return value;
    }

    private static long number(final Properties lines, final String name, final long fallback, final long least, final long most) {
        final String value = text(lines, name, String.valueOf(fallback));
        if (!value.matches("[0-9]{1,9}") || Long.parseLong(value) < least || Long.parseLong(value) > most) {
            throw bad(name, value, "a number from " + least + " to " + most);
        }
        return Long.parseLong(value);
    }

    private static IllegalArgumentException bad(final String name, final String value, final String may) {
        return new IllegalArgumentException(name + ": '" + value + "' is not " + may);
    }
}
