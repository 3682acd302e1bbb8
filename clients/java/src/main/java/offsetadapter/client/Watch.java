package offsetadapter.client;

import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.util.OptionalLong;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import offsetadapter.rpc.GroupShards;
import offsetadapter.rpc.OffsetStoreGrpc.OffsetStoreStub;
import offsetadapter.rpc.ShardOffset;
import offsetadapter.rpc.WatchOffsetsReply;
import offsetadapter.rpc.WatchOffsetsRequest;

/** A watch, which connects again by itself until it is closed. Made by {@link Client#watch}. */
public final class Watch implements AutoCloseable {
    private final OffsetStoreStub stub;
    private final WatchOffsetsRequest filter;
    private final Watcher watcher;
    private final ScheduledExecutorService clock;
    private final Pauses pauses = new Pauses();
    private ClientCallStreamObserver<WatchOffsetsRequest> call;
    private boolean isClosed;

    Watch(final OffsetStoreStub stub, final WatchOffsetsRequest filter, final Watcher watcher, final ScheduledExecutorService clock) {
        this.stub = stub;
        this.filter = filter;
        this.watcher = watcher;
        this.clock = clock;
    }

    void begin() {
        stub.watchOffsets(filter, new Listener());
        synchronized (this) {
            if (isClosed) { // while the call was begun
                call.cancel("the watch is closed", null);
            }
        }
    }

    /** End it. A change that is being told at this moment is told to its end. */
    @Override
    public synchronized void close() {
        isClosed = true;
        if (call != null) {
            call.cancel("the watch is closed", null);
        }
    }

    private synchronized boolean isOpen() {
        return !isClosed;
    }

    /** The calls of a Watcher come from here: of one call, gRPC makes one after the other. */
    private final class Listener implements ClientResponseObserver<WatchOffsetsRequest, WatchOffsetsReply> {
        private boolean isHeard;

        @Override
        public void beforeStart(final ClientCallStreamObserver<WatchOffsetsRequest> begun) {
            synchronized (Watch.this) {
                call = begun;
            }
        }

        @Override
        public void onNext(final WatchOffsetsReply reply) {
            isHeard = true;
            pauses.forget();
            if (reply.getResync() && isOpen()) {
                watcher.onResync();
            }
            for (final ShardOffset row : reply.getChangedList()) {
                final OptionalLong offset = row.getDeleted() ? OptionalLong.empty() : OptionalLong.of(row.getOffset());
                if (isOpen()) {
                    watcher.onChanged(group(row.getNamespace(), row.getGroup()), row.getShard(), offset, row.getEpoch(), row.getHeld());
                }
            }
            for (final GroupShards row : reply.getRemovedList()) {
                if (isOpen()) {
                    watcher.onRemoved(group(row.getNamespace(), row.getGroup()), row.getShardsList());
                }
            }
        }

        @Override
        public void onError(final Throwable error) {
            ended(Statuses.exception(error));
        }

        @Override
        public void onCompleted() {
            ended(new LostException("the adapter ended the watch"));
        }

        private void ended(final OffsetAdapterException problem) {
            if (!isOpen()) {
                return;
            }
            if (isHeard) {
                watcher.onDisconnected();
            }
            if (!problem.isRetryable()) {
                watcher.onFailed(problem);
                return;
            }
            try {
                clock.schedule(() -> {
                    if (isOpen()) {
                        begin();
                    }
                }, pauses.nextMillis(), TimeUnit.MILLISECONDS);
            } catch (final RejectedExecutionException closed) {
                watcher.onFailed(new LostException("the client is closed"));
            }
        }

        private Group group(final String namespace, final String name) {
            return Group.of(name).inNamespace(namespace);
        }
    }
}
