package offsetadapter.client;

import io.grpc.Metadata;
import io.grpc.Status;
import java.time.Duration;

/** The only place where a status becomes an exception. */
final class Statuses {
    static final String TIMED_OUT = "not answered in time";

    private static final Metadata.Key<String> PUSHBACK = Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER);
    private static final String OF_THE_REQUEST = "groups[0].";

    private Statuses() {
    }

    static OffsetAdapterException exception(final Throwable thrown) {
        final Status status = Status.fromThrowable(thrown);
        final String message = text(status);
        switch (status.getCode()) {
            case INVALID_ARGUMENT:
                // `groups[0].` is of the request, of which the caller knows nothing: it names one group.
                return InvalidException.of(message.startsWith(OF_THE_REQUEST) ? message.substring(OF_THE_REQUEST.length()) : message);
            case FAILED_PRECONDITION:
                return message.contains("ILLEGAL_GENERATION") ? new FencedException(message) : new RefusedException(message);
            case RESOURCE_EXHAUSTED:
                return new ExhaustedException(message, pushback(Status.trailersFromThrowable(thrown)));
            case DATA_LOSS:
                return new DamagedException(message);
            case UNAVAILABLE:
            case CANCELLED:
            case DEADLINE_EXCEEDED:
            case ABORTED:
            case UNKNOWN:
            case INTERNAL:
                // A call that was cut off ends with one of these, by the library and the moment. So does one that the server did not
                // expect to fail. Whether it was carried out is unknown in each case.
                return new LostException(message);
            default:
                return new RefusedException(message);
        }
    }

    /** Of all commits of a request alike, such as a full disk: each by itself would only be told the same. */
    static boolean isCommon(final Throwable thrown) {
        switch (Status.fromThrowable(thrown).getCode()) {
            case RESOURCE_EXHAUSTED:
            case DATA_LOSS:
            case UNAUTHENTICATED:
            case PERMISSION_DENIED:
                return true;
            default:
                return false;
        }
    }

    /** The text of a status, with what lies behind it where the connection failed. */
    private static String text(final Status status) {
        String text = status.getDescription() == null ? status.getCode().name() : status.getDescription();
        for (Throwable behind = status.getCause(); behind != null; behind = behind.getCause()) {
            if (behind.getMessage() != null && !text.contains(behind.getMessage())) {
                text += ": " + behind.getMessage();
            }
        }
        return text;
    }

    private static Duration pushback(final Metadata trailers) {
        final String text = trailers == null ? null : trailers.get(PUSHBACK);
        try {
            return text == null ? Duration.ZERO : Duration.ofMillis(Math.max(0, Integer.parseInt(text)));
        } catch (final NumberFormatException error) {
            return Duration.ZERO;
        }
    }
}
