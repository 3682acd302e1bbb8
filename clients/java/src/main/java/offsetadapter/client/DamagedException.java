package offsetadapter.client;

/**
 * The store of the adapter is damaged.
 *
 * <p>A person has to look: {@code offset-adapter status}.
 */
public final class DamagedException extends OffsetAdapterException {
    private static final long serialVersionUID = 1L;

    DamagedException(final String message) {
        super(message);
    }

    @Override
    OffsetAdapterException copy() {
        return new DamagedException(getMessage());
    }
}
