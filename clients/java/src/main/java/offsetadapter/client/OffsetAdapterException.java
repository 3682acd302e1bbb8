package offsetadapter.client;

/** Why a call failed. Each subclass says what is known then, and what to do. */
public abstract class OffsetAdapterException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    OffsetAdapterException(final String message) {
        super(message);
    }

    /** True if the same call may succeed later. After the {@link LostException} of an overwrite, read first. */
    public boolean isRetryable() {
        return false;
    }

    /** A copy that has the stack of who waits as well, and this one as its cause. */
    abstract OffsetAdapterException copy();

    final OffsetAdapterException thrownHere() {
        final OffsetAdapterException copy = copy();
        copy.initCause(this);
        return copy;
    }
}
