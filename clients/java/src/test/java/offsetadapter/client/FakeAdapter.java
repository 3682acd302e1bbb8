package offsetadapter.client;

import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerCredentials;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import offsetadapter.rpc.ChangeReply;
import offsetadapter.rpc.CommitOffsetsReply;
import offsetadapter.rpc.CommitOffsetsRequest;
import offsetadapter.rpc.DeleteOffsetsRequest;
import offsetadapter.rpc.GroupCommits;
import offsetadapter.rpc.OffsetAdminGrpc;
import offsetadapter.rpc.OffsetStoreGrpc;
import offsetadapter.rpc.ReadOffsetsReply;
import offsetadapter.rpc.ReadOffsetsRequest;
import offsetadapter.rpc.ShardCommit;
import offsetadapter.rpc.WatchOffsetsReply;
import offsetadapter.rpc.WatchOffsetsRequest;

/** A server that holds each commit until a test answers it. */
final class FakeAdapter extends OffsetStoreGrpc.OffsetStoreImplBase implements AutoCloseable {
    static final long PATIENCE_S = 60; // of a busy machine
    private static final Metadata.Key<String> TOKEN = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    final BlockingQueue<Held> requests = new LinkedBlockingQueue<>();
    final BlockingQueue<StreamObserver<WatchOffsetsReply>> watches = new LinkedBlockingQueue<>();
    final List<ReadOffsetsRequest> reads = new CopyOnWriteArrayList<>();
    /** What came with each call but commits. */
    final List<String> tokens = new CopyOnWriteArrayList<>();
    final String address;
    volatile ReadOffsetsReply stored = ReadOffsetsReply.getDefaultInstance();
    private final Server server;

    FakeAdapter() throws IOException {
        this(InsecureServerCredentials.create());
    }

    FakeAdapter(final ServerCredentials credentials) throws IOException {
        server = NettyServerBuilder.forAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), credentials)
            .permitKeepAliveWithoutCalls(true).permitKeepAliveTime(1, TimeUnit.SECONDS)
            .addService(this).addService(new Admin()).intercept(new ServerInterceptor() {
                @Override
                public <Q, R> ServerCall.Listener<Q> interceptCall(final ServerCall<Q, R> call, final Metadata headers,
                    final ServerCallHandler<Q, R> next) {
                    if (!call.getMethodDescriptor().getFullMethodName().endsWith("CommitOffsets")) {
                        tokens.add(String.valueOf(headers.get(TOKEN)));
                    }
                    return next.startCall(call, headers);
                }
            }).build().start();
        address = "127.0.0.1:" + server.getPort();
    }

    /** The next request. */
    Held next() throws InterruptedException {
        final Held found = requests.poll(PATIENCE_S, TimeUnit.SECONDS);
        if (found == null) {
            throw new AssertionError("no request came");
        }
        return found;
    }

    @Override
    public void commitOffsets(final CommitOffsetsRequest request, final StreamObserver<CommitOffsetsReply> answer) {
        requests.add(new Held(request, answer));
    }

    @Override
    public void readOffsets(final ReadOffsetsRequest request, final StreamObserver<ReadOffsetsReply> answer) {
        reads.add(request);
        if (reads.size() == 1) {
            answer.onError(Status.UNAVAILABLE.withDescription("recovering").asRuntimeException());
            return;
        }
        answer.onNext(stored);
        answer.onCompleted();
    }

    @Override
    public void watchOffsets(final WatchOffsetsRequest request, final StreamObserver<WatchOffsetsReply> answer) {
        ((ServerCallStreamObserver<WatchOffsetsReply>) answer).setOnCancelHandler(() -> { });
        watches.add(answer);
    }

    @Override
    public void close() throws InterruptedException {
        server.shutdownNow().awaitTermination();
    }

    /** A request that waits for its answer. */
    static final class Held {
        final CommitOffsetsRequest request;
        private final StreamObserver<CommitOffsetsReply> answer;

        Held(final CommitOffsetsRequest request, final StreamObserver<CommitOffsetsReply> answer) {
            this.request = request;
            this.answer = answer;
        }

        void done() {
            answer(CommitOffsetsReply.getDefaultInstance());
        }

        void answer(final CommitOffsetsReply reply) {
            answer.onNext(reply);
            answer.onCompleted();
        }

        void fail(final Status status, final String text) {
            answer.onError(new StatusRuntimeException(status.withDescription(text)));
        }

        /** Group and shard -> offset. */
        Map<String, Long> offsets() {
            final Map<String, Long> found = new TreeMap<>();
            for (final GroupCommits group : request.getGroupsList()) {
                for (int at = 0; at < group.getOffsetsCount(); at++) {
                    found.put(group.getGroup() + " " + group.getShardNames(at), group.getOffsets(at));
                }
                for (final ShardCommit row : group.getShardsList()) {
                    found.put(group.getGroup() + " " + row.getShard(), row.getOffset());
                }
            }
            return found;
        }
    }

    private static final class Admin extends OffsetAdminGrpc.OffsetAdminImplBase {
        @Override
        public void deleteOffsets(final DeleteOffsetsRequest request, final StreamObserver<ChangeReply> answer) {
            answer.onNext(ChangeReply.getDefaultInstance());
            answer.onCompleted();
        }
    }
}
