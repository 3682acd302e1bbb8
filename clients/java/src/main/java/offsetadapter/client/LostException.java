package offsetadapter.client;

/**
 * No answer came in time, or the adapter could not say: the call may have been carried out or not.
 *
 * <p>Repeat it. Commits that only increase, reads, persist and remove were already repeated until the timeout. A commit with overwrite
 * was sent once, because a late repeat could undo what others committed since: read where the group stands first.
 */
public final class LostException extends OffsetAdapterException {
    private static final long serialVersionUID = 1L;

    private final String reason;

    LostException(final String reason) {
        super("not answered; it may be done or not: " + reason);
        this.reason = reason;
    }

    @Override
    public boolean isRetryable() {
        return true;
    }

    @Override
    OffsetAdapterException copy() {
        return new LostException(reason);
    }
}
