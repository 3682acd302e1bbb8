package offsetadapter.client;

/**
 * The adapter or the Meta Service does not take this: its settings, its version, or a rule of the Meta Service forbid it.
 *
 * <p>A person has to look; the text is written for them.
 */
public final class RefusedException extends OffsetAdapterException {
    private static final long serialVersionUID = 1L;

    RefusedException(final String message) {
        super(message);
    }

    @Override
    OffsetAdapterException copy() {
        return new RefusedException(getMessage());
    }
}
