package offsetadapter.client;

/**
 * The request breaks a rule. Nothing of it was done, and a repeat would fail alike.
 *
 * <p>Correct the field.
 */
public final class InvalidException extends OffsetAdapterException {
    private static final long serialVersionUID = 1L;

    private final String field;

    InvalidException(final String field, final String problem) {
        this(field + ": " + problem, field, true);
    }

    private InvalidException(final String message, final String field, final boolean isWhole) {
        super(message);
        this.field = field;
    }

    /** Of a text that begins with the field. */
    static InvalidException of(final String message) {
        int end = message.indexOf(": ");
        if (end < 0) {
            end = message.indexOf(' ');
        }
        return new InvalidException(message, end < 0 ? "" : message.substring(0, end), true);
    }

    /** The field, such as {@code shards[1].shard}; empty if the text begins with none. */
    public String field() {
        return field;
    }

    @Override
    OffsetAdapterException copy() {
        return new InvalidException(getMessage(), field, true);
    }
}
