package offsetadapter.client;

import java.time.Duration;

/**
 * The adapter has too much to do, its disk is full, too many commits of this client wait, or the answer would be too large. Nothing was
 * done.
 *
 * <p>Try again later; ask for fewer shards if the text says so.
 */
public final class ExhaustedException extends OffsetAdapterException {
    private static final long serialVersionUID = 1L;

    private final Duration retryAfter;

    ExhaustedException(final String message, final Duration retryAfter) {
        super(message);
        this.retryAfter = retryAfter;
    }

    /** How long the adapter asks its clients to wait; zero: it does not say. */
    public Duration retryAfter() {
        return retryAfter;
    }

    @Override
    public boolean isRetryable() {
        return true;
    }

    @Override
    OffsetAdapterException copy() {
        return new ExhaustedException(getMessage(), retryAfter);
    }
}
