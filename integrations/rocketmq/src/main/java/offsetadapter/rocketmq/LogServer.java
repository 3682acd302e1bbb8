package offsetadapter.rocketmq;

import io.grpc.Server;
import io.grpc.ServerServiceDefinition;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.ServerCalls;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import offsetadapter.rpc.GetBoundsReply;
import offsetadapter.rpc.GetBoundsRequest;
import offsetadapter.rpc.GetOffsetsForTimeReply;
import offsetadapter.rpc.GetOffsetsForTimeRequest;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.constant.LoggerName;
import org.apache.rocketmq.logging.org.slf4j.Logger;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;

/** Serves offsets.v1.BrokerLog over the broker's own store: lag in `groups describe`, resets to ends and times. */
final class LogServer {
    private static final Logger LOG = LoggerFactory.getLogger(LoggerName.BROKER_LOGGER_NAME);
    private static final int THREADS = 2;

    private final BrokerController controller;
    private final Broker broker;
    private final String address;
    private final ExecutorService threads = Executors.newFixedThreadPool(THREADS, work -> {
        final Thread thread = new Thread(work, "offset-adapter-log");
        thread.setDaemon(true);
        return thread;
    });
    private Server server;
    private String state = "off";

    LogServer(final BrokerController controller, final Broker broker, final String address) {
        this.controller = controller;
        this.broker = broker;
        this.address = address;
    }

    /** Opens the port, if there is to be one. The broker works without it too, so a failure is only told. */
    void start() {
        if (address.isEmpty()) {
            return;
        }
        try {
            server = NettyServerBuilder.forAddress(new InetSocketAddress(Settings.host(address), Settings.port(address)))
                .executor(threads).addService(service()).build().start();
            state = "serving at " + address;
        } catch (IOException e) {
            state = "not serving: " + e.getMessage();
            LOG.error("offset-adapter: BrokerLog is not served at {}: {}", address, e.toString());
        }
    }

    private ServerServiceDefinition service() {
        return ServerServiceDefinition.builder(Calls.BROKER_LOG)
            .addMethod(Calls.BOUNDS, ServerCalls.asyncUnaryCall(this::getBounds))
            .addMethod(Calls.TIMES, ServerCalls.asyncUnaryCall(this::getOffsetsForTime)).build();
    }

    void stop() {
        if (server != null) {
            server.shutdownNow();
        }
        threads.shutdown();
    }

    String state() {
        return state;
    }

    private void getBounds(final GetBoundsRequest request, final StreamObserver<GetBoundsReply> reply) {
        final GetBoundsReply.Builder rows = GetBoundsReply.newBuilder();
        for (final String shard : request.getShardsList()) {
            final Key queue = queue(shard);
            if (queue != null) {
                final long low = Math.max(0, controller.getMessageStore().getMinOffsetInQueue(queue.topic, queue.queue));
                rows.addBounds(GetBoundsReply.Bounds.newBuilder().setShard(shard).setLow(low).setHigh(Math.max(low, broker.end(queue))));
            }
        }
        reply.onNext(rows.build());
        reply.onCompleted();
    }

    private void getOffsetsForTime(final GetOffsetsForTimeRequest request, final StreamObserver<GetOffsetsForTimeReply> reply) {
        final GetOffsetsForTimeReply.Builder rows = GetOffsetsForTimeReply.newBuilder();
        for (final String shard : request.getShardsList()) {
            final Key queue = queue(shard);
            if (queue != null) {
                final GetOffsetsForTimeReply.Found.Builder found = GetOffsetsForTimeReply.Found.newBuilder().setShard(shard);
                final long at = firstAt(queue, request.getTimestampMs());
                if (at >= 0) {
                    found.setOffset(at);
                }
                rows.addFound(found);
            }
        }
        reply.onNext(rows.build());
        reply.onCompleted();
    }

    /** The offset of the first message at or after a time; NONE if all are older. */
    private long firstAt(final Key queue, final long timestampMs) {
        final long high = broker.end(queue);
        final long low = Math.max(0, controller.getMessageStore().getMinOffsetInQueue(queue.topic, queue.queue));
        final long at = Math.max(low, controller.getMessageStore().getOffsetInQueueByTime(queue.topic, queue.queue, timestampMs, BoundaryType.LOWER));
        final boolean exists = at < high && controller.getMessageStore().getMessageStoreTimeStamp(queue.topic, queue.queue, at) >= timestampMs;
        return exists ? at : Broker.NONE;
    }

    /** Null for shards of others, and for queues that this broker does not have. */
    private Key queue(final String shard) {
        final Key key = Key.of(broker.name(), "", shard);
        final long end = key == null ? Broker.NONE : broker.end(key);
        return end == Broker.NONE || end == Long.MAX_VALUE ? null : key;
    }
}
