import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** One channel, and calls on it whose messages are bytes. */
final class Calls {
    private static final int DEADLINE_MS = 30_000;
    private static final String STORE = "offsets.v1.OffsetStore/";
    private final ManagedChannel channel;

    /** How a call ended; its reply, where it has one. */
    record Result(int code, String message, byte[] reply) {
    }

    Calls(final String address, final boolean keepalive, final boolean transparentRetries) {
        final ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(address, InsecureChannelCredentials.create());
        if (keepalive) {
            builder.keepAliveTime(10, TimeUnit.SECONDS).keepAliveTimeout(2, TimeUnit.SECONDS).keepAliveWithoutCalls(true);
        }
        if (!transparentRetries) {
            builder.disableRetry();
        }
        channel = builder.directExecutor().disableServiceConfigLookUp().build();
    }

    void close() {
        channel.shutdownNow();
    }

    CompletableFuture<Result> commit(final byte[] request) {
        return unary(STORE + "CommitOffsets", request, within(DEADLINE_MS), new Metadata());
    }

    CompletableFuture<Result> commit(final byte[] request, final CallOptions options, final Metadata headers) {
        return unary(STORE + "CommitOffsets", request, options, headers);
    }

    CompletableFuture<Result> read(final byte[] request) {
        return unary(STORE + "ReadOffsets", request, within(DEADLINE_MS), new Metadata());
    }

    CompletableFuture<Result> unary(final String method, final byte[] request) {
        return unary(method, request, within(DEADLINE_MS), new Metadata());
    }

    Stream streamCommits() {
        return streamCommits(within(DEADLINE_MS));
    }

    Stream streamCommits(final CallOptions options) {
        return new Stream(channel.newCall(method(STORE + "StreamCommits", MethodType.BIDI_STREAMING), options));
    }

    Stream watch(final byte[] request) {
        final var method = method("grpc.health.v1.Health/Watch", MethodType.SERVER_STREAMING);
        final Stream stream = new Stream(channel.newCall(method, within(DEADLINE_MS)));
        stream.call.sendMessage(request);
        stream.call.halfClose();
        return stream;
    }

    static CallOptions within(final int milliseconds) {
        return CallOptions.DEFAULT.withDeadlineAfter(milliseconds, TimeUnit.MILLISECONDS);
    }

    private CompletableFuture<Result> unary(
            final String name, final byte[] request, final CallOptions options, final Metadata headers) {
        final CompletableFuture<Result> result = new CompletableFuture<>();
        final ClientCall<byte[], byte[]> call = channel.newCall(method(name, MethodType.UNARY), options);
        final byte[][] reply = {new byte[0]};
        call.start(new ClientCall.Listener<>() {
            @Override
            public void onMessage(final byte[] message) {
                reply[0] = message;
            }

            @Override
            public void onClose(final Status status, final Metadata trailers) {
                result.complete(new Result(status.getCode().value(), text(status), reply[0]));
            }
        }, headers);
        call.request(2);
        call.sendMessage(request);
        call.halfClose();
        return result;
    }

    private static String text(final Status status) {
        return status.getDescription() == null ? "" : status.getDescription();
    }

    private static MethodDescriptor<byte[], byte[]> method(final String name, final MethodType type) {
        return MethodDescriptor.newBuilder(new Bytes(), new Bytes()).setFullMethodName(name).setType(type).build();
    }

    /** A call that is a stream, for one thread that writes and one that reads. */
    static final class Stream extends ClientCall.Listener<byte[]> {
        private static final byte[] END = new byte[0];
        private final ClientCall<byte[], byte[]> call;
        private final BlockingQueue<byte[]> messages = new LinkedBlockingQueue<>();
        private Status status;

        Stream(final ClientCall<byte[], byte[]> call) {
            this.call = call;
            call.start(this, new Metadata());
            call.request(1);
        }

        /** Sends a message when the library wants one; nothing when the call has ended. */
        synchronized void write(final byte[] message) throws InterruptedException {
            while (status == null && !call.isReady()) {
                wait();
            }
            if (status == null) {
                call.sendMessage(message);
            }
        }

        /** The next message; null at the end of the call. */
        byte[] read() throws InterruptedException {
            final byte[] message = messages.take();
            if (message == END) {
                messages.add(END);
                return null;
            }
            call.request(1);
            return message;
        }

        synchronized void halfClose() {
            if (status == null) {
                call.halfClose();
            }
        }

        void cancel() {
            call.cancel("the scenario cancels", null);
        }

        /** Reads to the end of the call; returns its code. */
        int code() throws InterruptedException {
            while (read() != null) { }
            return status.getCode().value();
        }

        @Override
        public void onMessage(final byte[] message) {
            messages.add(message);
        }

        @Override
        public synchronized void onReady() {
            notifyAll();
        }

        @Override
        public synchronized void onClose(final Status closed, final Metadata trailers) {
            status = closed;
            messages.add(END);
            notifyAll();
        }
    }

    private static final class Bytes implements MethodDescriptor.Marshaller<byte[]> {
        @Override
        public InputStream stream(final byte[] value) {
            return new ByteArrayInputStream(value);
        }

        @Override
        public byte[] parse(final InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (final IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }
}
