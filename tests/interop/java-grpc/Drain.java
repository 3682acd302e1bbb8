import io.grpc.CallOptions;
import io.grpc.Metadata;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/** Workers that go on through restarts of the adapter, until stdin is at its end; the ledger of what was acknowledged. */
final class Drain {
    private static final int RETRY_MS = 20;
    private final Calls calls;
    private final String group;
    private final Map<String, Long> acknowledged = new ConcurrentHashMap<>();
    private final Map<Integer, Integer> codes = new TreeMap<>();
    private final Map<Integer, Integer> streamCodes = new TreeMap<>();
    private final int withinMs;
    private final AtomicLong longestNs = new AtomicLong();
    private volatile boolean ending;

    private interface Worker {
        void work() throws InterruptedException;
    }

    Drain(final Calls calls, final String group, final int withinMs) {
        this.withinMs = withinMs;
        this.calls = calls;
        this.group = group;
    }

    Map<String, ?> run() throws Exception {
        final List<Thread> threads = new ArrayList<>();
        for (int at = 0; at < 8; at++) {
            final String shard = "w-" + at;
            threads.add(started(() -> unary(shard)));
        }
        threads.add(started(this::stream));
        System.in.readAllBytes();
        ending = true;
        for (final Thread thread : threads) {
            thread.join();
        }
        final long longestMs = longestNs.get() / 1_000_000;
        return Map.of("acknowledged", acknowledged, "codes", codes, "stream_codes", streamCodes, "longest_ms", longestMs);
    }

    private static Thread started(final Worker worker) {
        final Thread thread = new Thread(() -> {
            try {
                worker.work();
            } catch (final InterruptedException error) {
                throw new IllegalStateException(error);
            }
        });
        thread.start();
        return thread;
    }

    private void unary(final String shard) throws InterruptedException {
        acknowledged.put(shard, 0L);
        while (!ending) {
            final long offset = acknowledged.get(shard) + 1;
            final long begun = System.nanoTime();
            final int code = calls.commit(commit(shard, offset), Calls.within(withinMs), new Metadata()).join().code();
            longestNs.accumulateAndGet(System.nanoTime() - begun, Math::max);
            synchronized (codes) {
                Client.count(codes, code);
            }
            if (code == 0) {
                acknowledged.put(shard, offset);
            } else {
                Thread.sleep(RETRY_MS);
            }
        }
    }

    private void stream() throws InterruptedException {
        acknowledged.put("stream", 0L);
        while (!ending) {
            final Calls.Stream call = calls.streamCommits(CallOptions.DEFAULT);
            lockstep(call);
            call.halfClose();
            Client.count(streamCodes, call.code());
            Thread.sleep(RETRY_MS);
        }
    }

    private void lockstep(final Calls.Stream call) throws InterruptedException {
        while (!ending) {
            final long offset = acknowledged.get("stream") + 1;
            call.write(Wire.streamed(offset, commit("stream", offset)));
            final byte[] message = call.read();
            if (message == null) {
                return;
            }
            final int code = (int) Wire.reply(message).code();
            if (code == 0) {
                acknowledged.put("stream", offset);
            } else {
                Client.count(streamCodes, code);
                Thread.sleep(RETRY_MS);
            }
        }
    }

    private byte[] commit(final String shard, final long offset) {
        return Wire.commit(group, new Wire.Shard(shard, offset));
    }
}
