package offsetadapter.rocketmq;

import com.google.protobuf.ByteString;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.EventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.net.InetSocketAddress;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import offsetadapter.rpc.ChangeReply;
import offsetadapter.rpc.CommitMode;
import offsetadapter.rpc.CommitOffsetsReply;
import offsetadapter.rpc.CommitOffsetsRequest;
import offsetadapter.rpc.DeleteOffsetsRequest;
import offsetadapter.rpc.GroupCommits;
import offsetadapter.rpc.GroupShards;
import offsetadapter.rpc.ListOffsetsReply;
import offsetadapter.rpc.ListOffsetsRequest;
import offsetadapter.rpc.Raised;
import offsetadapter.rpc.ReadMode;
import offsetadapter.rpc.ReadOffsetsRequest;
import offsetadapter.rpc.ResetOffsetsRequest;
import offsetadapter.rpc.ShardCommit;
import offsetadapter.rpc.ShardOffset;
import offsetadapter.rpc.Superseded;
import offsetadapter.rpc.WatchOffsetsReply;
import offsetadapter.rpc.WatchOffsetsRequest;

/** The adapter over gRPC, in the namespace `default`. One connection; offsets of other brokers are left out of every answer. */
final class GrpcSidecar implements Sidecar {
    private static final String NAMESPACE = "default";
    private static final long COMMIT_MS = 5_000;
    private static final long ADMIN_MS = 15_000;
    private static final long READ_MS = 15_000;
    private static final long ONE_MS = 1_000;
    private static final int PAGE = 10_000;
    /** The adapter sends at most 4 MiB, and a row more. */
    private static final int MAX_REPLY_BYTES = 16 << 20;
    private static final long CLOSE_MS = 1_000;

    private final String broker;
    private final ManagedChannel channel;
    private final EventLoopGroup threads;
    /** The same connection, with the token. */
    private final Channel admin;

    GrpcSidecar(final String broker, final String address, final String token) {
        this.broker = broker;
        final NettyChannelBuilder builder;
        if (address.startsWith("unix:")) {
            threads = new EpollEventLoopGroup(1);
            builder = NettyChannelBuilder.forAddress(new DomainSocketAddress(address.substring("unix:".length())))
                .eventLoopGroup(threads).channelType(EpollDomainSocketChannel.class).overrideAuthority("localhost");
        } else {
            threads = null;
            builder = NettyChannelBuilder.forAddress(new InetSocketAddress(Settings.host(address), Settings.port(address)));
        }
        channel = builder.usePlaintext().maxInboundMessageSize(MAX_REPLY_BYTES).build();
        final Metadata headers = new Metadata();
        if (!token.isEmpty()) {
            headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + token);
        }
        admin = ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers));
    }

    @Override
    public Committed commit(final List<Offset> offsets, final boolean overwrite) throws SidecarException {
        final Map<String, GroupCommits.Builder> groups = new LinkedHashMap<>();
        for (final Offset row : offsets) {
            groups.computeIfAbsent(row.key.group, group -> GroupCommits.newBuilder().setGroup(group))
                .addShards(ShardCommit.newBuilder().setShard(row.key.shard(broker)).setOffset(row.offset).setEpoch(row.epoch)
                    .setTopic(row.key.topic).setPartition(row.key.queue));
        }
        final CommitOffsetsRequest.Builder request = CommitOffsetsRequest.newBuilder()
            .setMode(overwrite ? CommitMode.OVERWRITE : CommitMode.INCREASE_ONLY);
        groups.values().forEach(request::addGroups);
        final CommitOffsetsReply reply = call(channel, Calls.COMMIT, request.build(), COMMIT_MS);
        final Map<Key, Standing> superseded = new HashMap<>();
        for (final Superseded row : reply.getSupersededList()) {
            put(superseded, row.getGroup(), row.getShard(), new Standing(row.getEpoch(), row.getOffset(), row.getDeleted()));
        }
        final Map<Key, Long> raised = new HashMap<>();
        for (final Raised row : reply.getRaisedList()) {
            final Key key = Key.of(broker, row.getGroup(), row.getShard());
            if (key != null) {
                raised.put(key, row.getEpoch());
            }
        }
        return new Committed(superseded, raised);
    }

    @Override
    public Map<Key, Standing> reset(final String group, final List<Offset> offsets) throws SidecarException {
        final ResetOffsetsRequest.Targets.Builder targets = ResetOffsetsRequest.Targets.newBuilder();
        offsets.forEach(row -> targets.addTargets(
            ResetOffsetsRequest.Target.newBuilder().setShard(row.key.shard(broker)).setOffset(row.offset)));
        final ResetOffsetsRequest request = ResetOffsetsRequest.newBuilder().setNamespace(NAMESPACE).setGroup(group)
            .setToTargets(targets).setExecute(true).setCreate(true).build();
        return after(call(admin, Calls.RESET, request, ADMIN_MS));
    }

    @Override
    public Map<Key, Standing> delete(final String group, final List<Key> keys) throws SidecarException {
        final DeleteOffsetsRequest.Builder request = DeleteOffsetsRequest.newBuilder().setNamespace(NAMESPACE).setGroup(group).setExecute(true);
        keys.forEach(key -> request.addShards(key.shard(broker)));
        return after(call(admin, Calls.DELETE, request.build(), ADMIN_MS));
    }

    private Map<Key, Standing> after(final ChangeReply reply) {
        final Map<Key, Standing> rows = new HashMap<>();
        for (final ChangeReply.Row row : reply.getRowsList()) {
            if (row.hasAfter()) {
                put(rows, row.getGroup(), row.getShard(), new Standing(row.getAfter().getEpoch(), row.getAfter().getOffset(), row.getAfter().getDeleted()));
            }
        }
        return rows;
    }

    @Override
    public Map<Key, Standing> list() throws SidecarException {
        final Map<Key, Standing> rows = new HashMap<>();
        ByteString token = ByteString.EMPTY;
        do {
            final ListOffsetsRequest request = ListOffsetsRequest.newBuilder().setNamespace(NAMESPACE).setPageSize(PAGE)
                .setPageToken(token).setDeleted(true).build();
            final ListOffsetsReply page = call(channel, Calls.LIST, request, READ_MS);
            putAll(rows, page.getOffsetsList());
            token = page.getNextPageToken();
        } while (!token.isEmpty());
        return rows;
    }

    @Override
    public Map<Key, Standing> read(final Collection<String> groups, final boolean fromStore) throws SidecarException {
        final ReadOffsetsRequest.Builder request = ReadOffsetsRequest.newBuilder().setMode(fromStore ? ReadMode.STORE : ReadMode.MEMORY);
        groups.forEach(group -> request.addGroups(GroupShards.newBuilder().setGroup(group)));
        final Map<Key, Standing> rows = new HashMap<>();
        putAll(rows, call(channel, Calls.READ, request.build(), READ_MS).getOffsetsList());
        return rows;
    }

    @Override
    public Standing read(final Key key) throws SidecarException {
        final ReadOffsetsRequest request = ReadOffsetsRequest.newBuilder().setMode(ReadMode.STORE)
            .addGroups(GroupShards.newBuilder().setGroup(key.group).addShards(key.shard(broker))).build();
        final Map<Key, Standing> rows = new HashMap<>();
        putAll(rows, call(channel, Calls.READ, request, ONE_MS).getOffsetsList());
        return rows.get(key);
    }

    @Override
    public void watch(final Watcher watcher) {
        final WatchOffsetsRequest request = WatchOffsetsRequest.newBuilder().setNamespace(NAMESPACE).build();
        ClientCalls.asyncServerStreamingCall(channel.newCall(Calls.WATCH, CallOptions.DEFAULT), request, new StreamObserver<WatchOffsetsReply>() {
            @Override
            public void onNext(final WatchOffsetsReply reply) {
                if (reply.getResync()) {
                    watcher.resync();
                }
                final Map<Key, Standing> rows = new HashMap<>();
                putAll(rows, reply.getChangedList());
                if (!rows.isEmpty()) {
                    watcher.changed(rows);
                }
            }

            @Override
            public void onError(final Throwable error) {
                tryAgain(Status.fromThrowable(error));
                watcher.ended(Status.fromThrowable(error).toString());
            }

            @Override
            public void onCompleted() {
                watcher.ended("completed");
            }
        });
    }

    private void putAll(final Map<Key, Standing> rows, final List<ShardOffset> offsets) {
        offsets.forEach(row -> put(rows, row.getGroup(), row.getShard(), new Standing(row.getEpoch(), row.getOffset(), row.getDeleted())));
    }

    private void put(final Map<Key, Standing> rows, final String group, final String shard, final Standing standing) {
        final Key key = Key.of(broker, group, shard);
        if (key != null) {
            rows.put(key, standing);
        }
    }

    private <Q, R> R call(final Channel through, final MethodDescriptor<Q, R> method, final Q request, final long millis) throws SidecarException {
        try {
            return ClientCalls.blockingUnaryCall(through, method, CallOptions.DEFAULT.withDeadlineAfter(millis, TimeUnit.MILLISECONDS), request);
        } catch (StatusRuntimeException e) {
            final Status.Code code = e.getStatus().getCode();
            final boolean again = code == Status.Code.UNAVAILABLE || code == Status.Code.DEADLINE_EXCEEDED || code == Status.Code.CANCELLED
                || code == Status.Code.RESOURCE_EXHAUSTED || code == Status.Code.ABORTED || code == Status.Code.UNKNOWN || code == Status.Code.INTERNAL;
            tryAgain(e.getStatus());
            throw new SidecarException(message(e.getStatus()), again);
        }
    }

    /** The sidecar is on this machine, and may be back at any moment: gRPC would wait for up to two minutes. */
    private void tryAgain(final Status status) {
        if (status.getCode() == Status.Code.UNAVAILABLE) {
            channel.resetConnectBackoff();
        }
    }

    private static String message(final Status status) {
        final Throwable cause = status.getCause();
        return status.getCode() + ": " + status.getDescription() + (cause != null ? " (" + cause.getMessage() + ")" : "");
    }

    @Override
    public void close() {
        channel.shutdownNow();
        if (threads != null) {
            threads.shutdownGracefully(0, CLOSE_MS, TimeUnit.MILLISECONDS);
        }
    }
}
