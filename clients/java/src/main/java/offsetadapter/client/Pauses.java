package offsetadapter.client;

import java.util.concurrent.ThreadLocalRandom;

/** The pauses between the attempts of a call, a watch, or all commits of a client: they grow, with jitter, to half a second at most. */
final class Pauses {
    private static final long FIRST_MS = 10;
    private static final long LONGEST_MS = 500;

    private int count;

    long nextMillis() {
        final long most = Math.min(LONGEST_MS, FIRST_MS << Math.min(count, 10));
        count++;
        return FIRST_MS + ThreadLocalRandom.current().nextLong(most - FIRST_MS + 1);
    }

    /** An attempt succeeded: the next pause is a short one. */
    void forget() {
        count = 0;
    }
}
