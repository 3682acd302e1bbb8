package offsetadapter.client;

/**
 * The generation of the commit has ended: a newer one of the group has committed. Nothing of the commit was done.
 *
 * <p>Refuse the consumer (Kafka's ILLEGAL_GENERATION): it has to join its group again.
 */
public final class FencedException extends OffsetAdapterException {
    private static final long serialVersionUID = 1L;

    FencedException(final String message) {
        super(message);
    }

    @Override
    OffsetAdapterException copy() {
        return new FencedException(getMessage());
    }
}
