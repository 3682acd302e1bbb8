package offsetadapter.benchmark;

import io.grpc.ManagedChannel;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.ChannelOption;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import offsetadapter.client.Client;
import offsetadapter.client.Commit;
import offsetadapter.client.Group;
import offsetadapter.rpc.CommitOffsetsRequest;
import offsetadapter.rpc.GroupCommits;
import offsetadapter.rpc.OffsetStoreGrpc;
import offsetadapter.rpc.OffsetStoreGrpc.OffsetStoreBlockingStub;
import offsetadapter.rpc.ShardCommit;

/**
 * Commits per second of this client, and of the bare generated stub with one call a commit, in turns: {@code ADDRESS CONSUMERS SECONDS
 * ROUNDS}.
 *
 * <p>Each consumer is a thread, has a shard of its own, and commits as soon as it is answered. Prints "bare begin" and "bare RATE" around
 * each window, and the same for "client", and ends with its stdin. benchmarks/clients.py runs it.
 */
public final class Benchmark {
    private static final long TIMEOUT_S = 30;
    /** Rise for ever, so that each commit changes something. */
    private static final AtomicLong OFFSETS = new AtomicLong();

    private Benchmark() {
    }

    private interface Side {
        void commit(String group, String shard, long offset);
    }

    public static void main(final String[] arguments) throws InterruptedException, IOException {
        final int consumers = Integer.parseInt(arguments[1]);
        final double seconds = Double.parseDouble(arguments[2]);
        final EpollEventLoopGroup threads = new EpollEventLoopGroup(1);
        final ManagedChannel channel = NettyChannelBuilder.forAddress(new DomainSocketAddress(arguments[0].substring("unix:".length())))
            .eventLoopGroup(threads).channelType(EpollDomainSocketChannel.class).overrideAuthority("localhost")
            .withOption(ChannelOption.SO_KEEPALIVE, null).usePlaintext().build();
        try (Client client = Client.builder(arguments[0]).timeout(Duration.ofSeconds(TIMEOUT_S)).build()) {
            final OffsetStoreBlockingStub stub = OffsetStoreGrpc.newBlockingStub(channel);
            final Map<String, Side> sides = new LinkedHashMap<>();
            sides.put("bare", (group, shard, offset) -> stub.withDeadlineAfter(TIMEOUT_S, TimeUnit.SECONDS).commitOffsets(
                CommitOffsetsRequest.newBuilder().addGroups(GroupCommits.newBuilder().setGroup(group)
                    .addShards(ShardCommit.newBuilder().setShard(shard).setOffset(offset))).build()));
            sides.put("client", (group, shard, offset) -> client.commit(Commit.of(Group.of(group)).offset(shard, offset)));
            for (int round = 0; round < Integer.parseInt(arguments[3]); round++) {
                for (final Map.Entry<String, Side> side : sides.entrySet()) {
                    rate(side.getValue(), side.getKey(), consumers, seconds / 2); // a warm-up
                    System.out.println(side.getKey() + " begin");
                    System.out.println(side.getKey() + " " + rate(side.getValue(), side.getKey(), consumers, seconds));
                }
            }
            System.in.readAllBytes();
        } finally {
            channel.shutdownNow();
            threads.shutdownGracefully();
        }
    }

    /** Commits per second. */
    private static double rate(final Side side, final String group, final int consumers, final double seconds) throws InterruptedException {
        final long begin = System.nanoTime();
        final long end = begin + (long) (seconds * 1e9);
        final AtomicLong count = new AtomicLong();
        final AtomicReference<RuntimeException> failed = new AtomicReference<>();
        final List<Thread> all = new ArrayList<>();
        for (int at = 0; at < consumers; at++) {
            final String shard = "shard-" + at;
            final Thread thread = new Thread(() -> {
                try {
                    while (System.nanoTime() < end) {
                        side.commit(group, shard, OFFSETS.incrementAndGet());
                        count.incrementAndGet();
                    }
                } catch (final RuntimeException error) {
                    failed.set(error);
                }
            });
            thread.start();
            all.add(thread);
        }
        for (final Thread thread : all) {
            thread.join();
        }
        if (failed.get() != null) {
            throw failed.get();
        }
        return count.get() / ((System.nanoTime() - begin) / 1e9);
    }
}
