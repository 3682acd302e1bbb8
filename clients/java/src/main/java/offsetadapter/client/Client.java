package offsetadapter.client;

import io.grpc.ChannelCredentials;
import io.grpc.ConnectivityState;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.AbstractBlockingStub;
import io.grpc.stub.MetadataUtils;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import offsetadapter.rpc.ChangeReply;
import offsetadapter.rpc.DeleteOffsetsRequest;
import offsetadapter.rpc.GroupShards;
import offsetadapter.rpc.OffsetAdminGrpc;
import offsetadapter.rpc.OffsetAdminGrpc.OffsetAdminBlockingStub;
import offsetadapter.rpc.OffsetStoreGrpc;
import offsetadapter.rpc.OffsetStoreGrpc.OffsetStoreBlockingStub;
import offsetadapter.rpc.OffsetStoreGrpc.OffsetStoreStub;
import offsetadapter.rpc.PersistOffsetsRequest;
import offsetadapter.rpc.ReadMode;
import offsetadapter.rpc.ReadOffsetsRequest;
import offsetadapter.rpc.RemoveOffsetsRequest;
import offsetadapter.rpc.ShardOffset;
import offsetadapter.rpc.WatchOffsetsRequest;

/**
 * A client of one adapter, for any number of threads: they share its connection and its requests.
 *
 * <p>It connects with the first call, and again whenever the connection is lost, so the adapter may start later, and restart at any time.
 * Every call throws an {@link OffsetAdapterException}, whose class says what to do. A thread that is interrupted while it waits gets a
 * {@link LostException}, and stays interrupted.
 */
public final class Client implements AutoCloseable {
    private static final long CLOSE_MS = 1_000;

    private final ManagedChannel channel;
    private final Runnable release;
    private final ScheduledThreadPoolExecutor clock;
    private final OffsetStoreStub watches;
    private final OffsetStoreBlockingStub store;
    private final OffsetAdminBlockingStub admin;
    private final Commits commits;
    private final Duration timeout;
    private final Pauses reconnects = new Pauses();

    private Client(final Builder settings) {
        final Connection connection = Connection.of(settings.address, settings.credentials, settings.serverName, settings.token);
        channel = connection.channel;
        release = connection.release;
        timeout = settings.timeout;
        clock = new ScheduledThreadPoolExecutor(1, task -> {
            final Thread thread = new Thread(task, "offset-adapter-client");
            thread.setDaemon(true);
            return thread;
        });
        clock.setRemoveOnCancelPolicy(true);
        clock.setExecuteExistingDelayedTasksAfterShutdownPolicy(false);
        // A call waits for the connection instead of failing while there is none, and ends at its deadline.
        watches = OffsetStoreGrpc.newStub(channel).withWaitForReady();
        store = OffsetStoreGrpc.newBlockingStub(channel).withWaitForReady();
        admin = withToken(OffsetAdminGrpc.newBlockingStub(channel).withWaitForReady(), settings.token);
        commits = new Commits(watches, timeout, clock);
        clock.execute(this::reconnect);
    }

    /**
     * A client of {@code unix:/path/to/socket} (Linux) or {@code host:port}, with a timeout of 5 s for each call.
     *
     * @throws InvalidException for an address that is none
     */
    public static Client of(final String address) {
        return builder(address).build();
    }

    /** A client with other settings than those of {@link #of}. */
    public static Builder builder(final String address) {
        return new Builder(address);
    }

    /**
     * Commit offsets. When it returns, they are durable as the policy of their group demands: on the adapter's disk, or in the Meta
     * Service.
     *
     * <p>Commits that are made at the same time share requests, so make many at once, from any number of threads. Of one shard they are
     * carried out in the order in which they were made. A commit whose request was lost is sent again until the timeout, so it survives a
     * restart of the adapter; one with {@link Commit#overwrite} is sent once.
     *
     * @throws MovedException all shards of the commit that it does not name are durable
     */
    public Committed commit(final Commit commit) {
        final CompletableFuture<Committed> answer = commitAsync(commit);
        try {
            return answer.get();
        } catch (final ExecutionException error) {
            throw ((OffsetAdapterException) error.getCause()).thrownHere();
        } catch (final InterruptedException error) {
            answer.cancel(true);
            Thread.currentThread().interrupt();
            throw new LostException("interrupted");
        }
    }

    /**
     * The same without waiting. An {@link OffsetAdapterException} completes it exceptionally; an {@link ExhaustedException} also if 8,192
     * commits of this client wait.
     *
     * <p>Cancelled, the commit may have been carried out or not, as after a {@link LostException}. What was not sent by then is not sent
     * any more. What depends on the future runs in a thread of the connection, and holds up the other answers of its request while it
     * blocks: use the {@code Async} methods.
     */
    public CompletableFuture<Committed> commitAsync(final Commit commit) {
        return commits.commit(commit);
    }

    /**
     * Where a consumer begins: shard -> the larger of what the adapter and the Meta Service have (STORE).
     *
     * <p>A shard without an offset is left out: absent is not 0. It also takes up what an operator reset: from then on commits without an
     * epoch are taken again. So call it only for a consumer that will go on from the answer.
     *
     * @throws LostException also while the Meta Service does not answer
     */
    public Map<String, Stored> read(final Group group, final Shards shards) {
        return read(group, shards, false);
    }

    /** The same for monitors and people: what an operator reset is not taken up by it. */
    public Map<String, Stored> peek(final Group group, final Shards shards) {
        return read(group, shards, true);
    }

    private Map<String, Stored> read(final Group group, final Shards shards, final boolean keepHold) {
        final ReadOffsetsRequest request =
            ReadOffsetsRequest.newBuilder().addGroups(shards.of(group)).setMode(ReadMode.STORE).setKeepHold(keepHold).build();
        final Map<String, Stored> found = new HashMap<>();
        for (final ShardOffset row : call(store, stub -> stub.readOffsets(request)).getOffsetsList()) {
            found.put(row.getShard(), new Stored(row));
        }
        return found;
    }

    /** Returns when the Meta Service has at least the present offsets of these shards. */
    public void persist(final Group group, final Shards shards) {
        final PersistOffsetsRequest request = PersistOffsetsRequest.newBuilder().addGroups(shards.of(group)).build();
        call(store, stub -> stub.persistOffsets(request));
    }

    /**
     * Hand shards over: when it returns, the Meta Service has their offsets, and this adapter no longer.
     *
     * <p>End their commits first: one that is made meanwhile brings the shard back to this adapter. After an exception some of the shards
     * may have been removed; the Meta Service has those.
     *
     * @return how many the last attempt removed; 0 also when an attempt whose answer was lost had removed them
     */
    public long remove(final Group group, final Shards shards) {
        final RemoveOffsetsRequest request = RemoveOffsetsRequest.newBuilder().addGroups(shards.of(group)).build();
        return call(store, stub -> stub.removeOffsets(request)).getRemoved();
    }

    /**
     * Delete offsets for good: in the Meta Service, and at this adapter, which does not send them again. After an exception some may have
     * been deleted.
     *
     * <p>An administrator's call (OffsetAdmin): over the adapter's Unix socket for the user that runs it, elsewhere with a
     * {@linkplain Builder#token token} or a certificate. Consumers hear of it as of a reset.
     *
     * @return how many
     */
    public long delete(final Group group, final Shards shards) {
        final GroupShards named = shards.of(group);
        final DeleteOffsetsRequest request = DeleteOffsetsRequest.newBuilder().setNamespace(named.getNamespace()).setGroup(named.getGroup())
            .addAllShards(named.getShardsList()).setExecute(true).build();
        return call(admin, stub -> stub.deleteOffsets(request)).getRowsList().stream().filter(ChangeReply.Row::getChanged).count();
    }

    /** Hear of changes that did not come as ordinary commits, of all groups, until the watch is closed. The first one is a resync. */
    public Watch watch(final Watcher watcher) {
        return watch(watcher, WatchOffsetsRequest.getDefaultInstance());
    }

    /** Hear of those of one group. */
    public Watch watch(final Group group, final Watcher watcher) {
        return watch(watcher, WatchOffsetsRequest.newBuilder().setNamespace(group.namespace()).setGroup(group.name()).build());
    }

    private Watch watch(final Watcher watcher, final WatchOffsetsRequest filter) {
        final Watch watch = new Watch(watches, filter, watcher, clock);
        watch.begin();
        return watch;
    }

    /** End the connection. Calls that are under way end with a {@link LostException}. */
    @Override
    public void close() {
        commits.close();
        channel.shutdownNow();
        try {
            channel.awaitTermination(CLOSE_MS, TimeUnit.MILLISECONDS);
        } catch (final InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        clock.shutdown();
        release.run();
    }

    /** A call that may be repeated, until it is answered or the timeout is over. */
    private <S extends AbstractBlockingStub<S>, R> R call(final S stub, final Function<S, R> method) {
        final long deadline = System.nanoTime() + timeout.toNanos();
        final Pauses pauses = new Pauses();
        while (true) {
            try {
                return method.apply(stub.withDeadlineAfter(deadline - System.nanoTime(), TimeUnit.NANOSECONDS));
            } catch (final StatusRuntimeException error) {
                final OffsetAdapterException problem = Statuses.exception(error);
                final long pause = pauses.nextMillis();
                final boolean isOver = deadline - System.nanoTime() <= TimeUnit.MILLISECONDS.toNanos(pause) || channel.isShutdown();
                if (!(problem instanceof LostException) || isOver || Thread.currentThread().isInterrupted()) {
                    throw problem;
                }
                try {
                    Thread.sleep(pause);
                } catch (final InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                    throw problem;
                }
            }
        }
    }

    /**
     * gRPC waits for a second after the first attempt to connect, and for two minutes in the end, and lets nobody choose: an adapter
     * restarts within seconds, so it is told to try again.
     */
    private void reconnect() {
        if (channel.isShutdown()) {
            return;
        }
        final ConnectivityState state = channel.getState(false);
        if (state == ConnectivityState.TRANSIENT_FAILURE) {
            channel.resetConnectBackoff();
            clock.schedule(this::reconnect, reconnects.nextMillis(), TimeUnit.MILLISECONDS);
            return;
        }
        reconnects.forget();
        channel.notifyWhenStateChanged(state, () -> {
            if (!clock.isShutdown()) {
                clock.execute(this::reconnect);
            }
        });
    }

    private static OffsetAdminBlockingStub withToken(final OffsetAdminBlockingStub stub, final String token) {
        if (token.isEmpty()) {
            return stub;
        }
        final Metadata headers = new Metadata();
        headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + token);
        return stub.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
    }

    /** The settings of a client. */
    public static final class Builder {
        private final String address;
        private Duration timeout = Duration.ofSeconds(5); // Kafka's commit timeout
        private String token = "";
        private ChannelCredentials credentials = InsecureChannelCredentials.create();
        private String serverName = "";

        private Builder(final String address) {
            this.address = address;
        }

        /** How long a call may take with all its attempts; 5 s if it is not set. */
        public Builder timeout(final Duration limit) {
            timeout = limit;
            return this;
        }

        /** The adapter's token ({@code admin.token_file}), for {@link Client#delete} over TCP. No other call needs or sends it. */
        public Builder token(final String text) {
            token = text;
            return this;
        }

        /**
         * TLS to {@code host:port}: {@link io.grpc.TlsChannelCredentials} with the authority that signed the adapter's certificate
         * ({@code trustManager}), and an identity, where the adapter asks its clients for one ({@code keyManager};
         * {@code server.tls.client_ca}).
         */
        public Builder tls(final ChannelCredentials tls) {
            credentials = tls;
            return this;
        }

        /** The name in the adapter's certificate, if that is not the host. */
        public Builder serverName(final String name) {
            serverName = name;
            return this;
        }

        /**
         * The client. It connects with its first call.
         *
         * @throws InvalidException for an address that is none, or a token that would go through a network in plaintext
         */
        public Client build() {
            return new Client(this);
        }
    }
}
