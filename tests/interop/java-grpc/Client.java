import com.google.gson.Gson;
import io.grpc.CallOptions;
import io.grpc.Metadata;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.stream.IntStream;

/** The scenarios of ../clients.md with grpc-java: one program, one channel, one report. */
public final class Client {
    private final Calls calls;
    private final String group;

    private Client(final Calls calls, final String group) {
        this.calls = calls;
        this.group = group;
    }

    public static void main(final String[] args) throws Exception {
        final Calls calls = new Calls(args[1], args[0].equals("keepalive"), args[0].equals("restarts"));
        final Map<String, ?> report = new Client(calls, args[2]).run(args);
        new PrintStream(System.out, true, StandardCharsets.UTF_8).println(new Gson().toJson(report));
        calls.close();
    }

    private Map<String, ?> run(final String[] args) throws Exception {
        final String group = args[2];
        return switch (args[0]) {
            case "unary" -> unary(Integer.parseInt(args[3]));
            case "large" -> Map.of("codes", codes(Wire.bulk(group, 1000), Wire.bulk(group, 1050), commit("after", 1)));
            case "concurrent_large" -> concurrentLarge();
            case "big_reply" -> bigReply();
            case "invalid" -> refused(calls.commit(twice()), 1);
            case "unknown" -> unknown();
            case "deadline" -> deadline();
            case "cancel" -> cancel(Integer.parseInt(args[3]));
            case "stream" -> stream(Integer.parseInt(args[3]));
            case "bidi_refused" -> bidiRefused();
            case "many" -> many(Integer.parseInt(args[3]), Integer.parseInt(args[4]));
            case "compressed" ->
                    refused(calls.commit(Wire.bulk(group, 4), options().withCompression("gzip"), new Metadata()), 2);
            case "metadata" -> metadata();
            case "server_stream" -> serverStream();
            case "keepalive" -> keepalive(Double.parseDouble(args[3]));
            case "drain" -> new Drain(calls, group, 5_000).run();
            case "restarts" -> new Drain(calls, group, 60_000).run();
            default -> throw new IllegalArgumentException("no such scenario: " + args[0]);
        };
    }

    private Map<String, ?> unary(final int count) {
        final Map<Integer, Integer> counts = new TreeMap<>();
        for (int at = 1; at <= count; at++) {
            count(counts, code("s-0", at));
        }
        return Map.of("codes", counts);
    }

    private Map<String, ?> concurrentLarge() {
        final var sent = IntStream.range(0, 16).mapToObj(at -> calls.commit(Wire.bulk(group + "-" + at, 256))).toList();
        final Map<Integer, Integer> counts = new TreeMap<>();
        sent.forEach(result -> count(counts, result.join().code()));
        return Map.of("codes", counts);
    }

    private Map<String, ?> bigReply() {
        final int code = calls.commit(Wire.bulk(group, 500)).join().code();
        final var sent = IntStream.range(0, 4).mapToObj(at -> calls.read(Wire.read(group))).toList();
        return Map.of("commit", code, "reads", sent.stream().map(result -> rows(result.join())).toList());
    }

    private Map<String, ?> unknown() {
        final List<Integer> codes = new ArrayList<>();
        for (final String method : List.of("offsets.v1.OffsetStore/NoSuchMethod", "no.such.Service/Method")) {
            codes.add(calls.unary(method, new byte[0]).join().code());
        }
        codes.add(code("s-0", 1));
        return Map.of("codes", codes);
    }

    private Map<String, ?> deadline() throws InterruptedException {
        final int stream = calls.streamCommits(Calls.within(200)).code();
        final int after = code("s-0", 1);
        final Map<Integer, Integer> counts = new TreeMap<>();
        for (int at = 1; at <= 20; at++) {
            count(counts, calls.commit(commit("s-1", at), Calls.within(1), new Metadata()).join().code());
        }
        return Map.of("stream", stream, "after", after, "short", counts, "last", code("s-0", 2));
    }

    private Map<String, ?> cancel(final int rounds) throws InterruptedException {
        final Map<Integer, Integer> counts = new TreeMap<>();
        int answered = 0;
        for (int at = 1; at <= rounds; at++) {
            final Calls.Stream call = calls.streamCommits();
            call.write(Wire.streamed(at, commit("s-0", at)));
            answered += call.read() == null ? 0 : 1;
            call.cancel();
            count(counts, call.code());
        }
        return Map.of("answered", answered, "codes", counts, "after", code("s-0", rounds + 1));
    }

    private Map<String, ?> stream(final int count) throws Exception {
        final Calls.Stream call = calls.streamCommits();
        final CompletableFuture<Map<String, Object>> reading = CompletableFuture.supplyAsync(() -> replies(call));
        for (int at = 1; at <= count; at++) {
            call.write(Wire.streamed(at, commit("s-" + at % 100, at)));
        }
        call.halfClose();
        final Map<String, Object> report = reading.get();
        report.put("code", call.code());
        return report;
    }

    private static Map<String, Object> replies(final Calls.Stream call) {
        long covers = 0;
        int replies = 0;
        int refused = 0;
        boolean ordered = true;
        try {
            for (byte[] message; (message = call.read()) != null; ) {
                final Wire.Reply reply = Wire.reply(message);
                covers += reply.covers();
                replies++;
                refused += reply.code() == 0 ? 0 : 1;
                ordered &= reply.id() == covers;
            }
        } catch (final InterruptedException error) {
            throw new IllegalStateException(error);
        }
        return new TreeMap<>(Map.of("covers", covers, "replies", replies, "refused", refused, "ordered", ordered));
    }

    private Map<String, ?> bidiRefused() throws InterruptedException {
        final Calls.Stream call = calls.streamCommits();
        final List<Wire.Reply> replies = new ArrayList<>();
        final List<byte[]> requests = List.of(commit("s-0", 1), twice(), commit("s-0", 3));
        for (int at = 1; at <= 3; at++) {
            call.write(Wire.streamed(at, requests.get(at - 1)));
            replies.add(Wire.reply(call.read()));
        }
        call.halfClose();
        return Map.of("code", call.code(), "replies", replies);
    }

    private Map<String, ?> many(final int count, final int inFlight) throws InterruptedException {
        final Map<Integer, Integer> counts = new TreeMap<>();
        final Semaphore room = new Semaphore(inFlight);
        for (int at = 1; at <= count; at++) {
            room.acquire();
            calls.commit(commit("s-" + at, at)).thenAccept(result -> {
                synchronized (counts) {
                    count(counts, result.code());
                }
                room.release();
            });
        }
        room.acquire(inFlight);
        final Map<String, Object> read = rows(calls.read(Wire.read(group)).join());
        return Map.of("codes", counts, "rows", read.get("rows"), "sum", read.get("sum"));
    }

    private Map<String, ?> metadata() {
        final int small = calls.commit(commit("s-0", 1), options(), filler(4096)).join().code();
        final Calls.Result large = calls.commit(commit("s-0", 2), options(), filler(20_480)).join();
        return Map.of("small", small, "large", large.code(), "message", large.message(), "after", code("s-0", 3));
    }

    private Map<String, ?> serverStream() throws InterruptedException {
        final Calls.Stream call = calls.watch(Wire.healthOf("offsets.v1.OffsetStore"));
        final long status = Wire.status(call.read());
        call.cancel();
        return Map.of("status", status, "code", call.code(), "after", code("s-0", 1));
    }

    private Map<String, ?> keepalive(final double seconds) throws InterruptedException {
        final Map<Integer, Integer> counts = new TreeMap<>();
        count(counts, code("s-0", 1));
        Thread.sleep((long) (seconds * 1000));
        count(counts, code("s-0", 2));
        return Map.of("codes", counts);
    }

    private Map<String, ?> refused(final CompletableFuture<Calls.Result> call, final long next) {
        final Calls.Result result = call.join();
        return Map.of("code", result.code(), "message", result.message(), "after", code("s-0", next));
    }

    private static Map<String, Object> rows(final Calls.Result result) {
        final List<Wire.Row> rows = Wire.rows(result.reply());
        final long metadata = rows.stream().mapToLong(Wire.Row::metadataBytes).sum();
        final long sum = rows.stream().mapToLong(Wire.Row::offset).sum();
        return Map.of("code", result.code(), "rows", rows.size(), "metadata_bytes", metadata, "sum", sum);
    }

    private List<Integer> codes(final byte[]... requests) {
        return Arrays.stream(requests).map(request -> calls.commit(request).join().code()).toList();
    }

    private int code(final String shard, final long offset) {
        return calls.commit(commit(shard, offset)).join().code();
    }

    private byte[] commit(final String shard, final long offset) {
        return Wire.commit(group, new Wire.Shard(shard, offset));
    }

    private byte[] twice() {
        return Wire.commit(group, new Wire.Shard("s-0", 1), new Wire.Shard("s-0", 1));
    }

    private static CallOptions options() {
        return Calls.within(30_000);
    }

    private static Metadata filler(final int length) {
        final Metadata headers = new Metadata();
        headers.put(Metadata.Key.of("x-filler", Metadata.ASCII_STRING_MARSHALLER), "X".repeat(length));
        return headers;
    }

    static void count(final Map<Integer, Integer> counts, final int code) {
        counts.merge(code, 1, Integer::sum);
    }
}
