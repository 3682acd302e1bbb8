package offsetadapter.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.OptionalLong;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import offsetadapter.rpc.GroupShards;
import offsetadapter.rpc.ReadMode;
import offsetadapter.rpc.ReadOffsetsReply;
import offsetadapter.rpc.ShardOffset;
import offsetadapter.rpc.WatchOffsetsReply;
import org.junit.Test;
import org.junit.function.ThrowingRunnable;

/** What a client refuses by itself, reads and watches. */
public final class ClientTest {
    private static final String NOBODY = "127.0.0.1:1";
    private static final Group BILLING = Group.of("billing");

    private static String fieldOf(final ThrowingRunnable call) {
        return assertThrows(InvalidException.class, call).field();
    }

    @Test
    public void anEmptyListOfShardsIsNotAll() {
        assertEquals("shards", fieldOf(Shards::of));
        assertEquals("shards", fieldOf(() -> Shards.of(Collections.emptyList())));
        try (Client client = Client.of(NOBODY)) {
            assertEquals("shards", fieldOf(() -> client.commit(Commit.of(BILLING))));
        }
    }

    @Test
    public void whatIsInvalidNamesItsField() {
        assertEquals("shards[1]", fieldOf(() -> Shards.of("a", "x".repeat(256))));
        assertEquals("shards[0]", fieldOf(() -> Shards.of("\u00e9".repeat(128))));
        assertEquals("shard", fieldOf(() -> Progress.of("", 1)));
        assertEquals("shard", fieldOf(() -> Progress.of("half \ud83d", 1)));
        assertEquals("offset", fieldOf(() -> Progress.of("s", -1)));
        assertEquals("group", fieldOf(() -> Group.of("a\nb")));
        assertEquals("namespace", fieldOf(() -> BILLING.inNamespace("")));
        assertNotNull(Shards.of("\ud83d\ude00", "\u00e9".repeat(127)));
        try (Client client = Client.of(NOBODY)) {
            assertEquals("shards[1].shard", fieldOf(() -> client.commit(Commit.of(BILLING).offset("a", 1).offset("a", 2))));
        }
    }

    @Test
    public void anAdapterThatIsNotThereIsALostCall() {
        try (Client client = Client.builder(NOBODY).timeout(Duration.ofMillis(50)).build()) {
            assertThrows(LostException.class, () -> client.commit(Commit.of(BILLING).offset("s", 1)));
            assertThrows(LostException.class, () -> client.read(BILLING, Shards.all()));
        }
    }

    @Test
    public void anAddressThatIsNoneIsTold() {
        for (final String address : List.of("", "localhost", "http://localhost:9520", "localhost:", ":9520", "unix:", "unix:adapter.sock",
            "::1:9520", "h:99999")) {
            assertEquals(address, "address", fieldOf(() -> Client.of(address)));
        }
    }

    @Test
    public void aTokenDoesNotLeaveTheMachineInPlaintext() {
        assertEquals("token", fieldOf(() -> Client.builder("10.0.0.1:9520").token("secret").build()));
        for (final String address : List.of("127.0.0.1:9520", "[::1]:9520", "localhost:9520", "unix:/run/a.sock")) {
            Client.builder(address).token("secret").build().close();
        }
        Client.builder("10.0.0.1:9520").token("secret").tls(TlsChannelCredentials.create()).build().close();
    }

    @Test
    public void aTokenIsSentWithADeleteAlone() throws Exception {
        try (FakeAdapter adapter = new FakeAdapter(); Client client = Client.builder(adapter.address).token("secret").build()) {
            client.read(BILLING, Shards.all());
            client.delete(BILLING, Shards.all());
            assertEquals(List.of("null", "null", "Bearer secret"), adapter.tokens);
        }
    }

    @Test
    public void aReadIsRepeatedAndTakesUpAResetAndAPeekDoesNot() throws Exception {
        try (FakeAdapter adapter = new FakeAdapter(); Client client = Client.of(adapter.address)) {
            adapter.stored = ReadOffsetsReply.newBuilder().addOffsets(ShardOffset.newBuilder().setShard("s").setOffset(-1)).build();
            final Stored stored = client.read(BILLING, Shards.of("s", "absent")).get("s");
            assertEquals("18446744073709551615", Long.toUnsignedString(stored.offset()));
            assertEquals(1, client.peek(BILLING, Shards.all()).size());
            assertEquals(3, adapter.reads.size());
            adapter.reads.forEach(read -> assertEquals(ReadMode.STORE, read.getMode()));
            assertEquals(List.of(false, false, true), List.of(adapter.reads.get(0).getKeepHold(), adapter.reads.get(1).getKeepHold(),
                adapter.reads.get(2).getKeepHold()));
        }
    }

    @Test
    public void anExhaustedAdapterSaysWhenToComeAgain() {
        final Metadata trailers = new Metadata();
        trailers.put(Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER), "250");
        final OffsetAdapterException found = Statuses.exception(new StatusRuntimeException(Status.RESOURCE_EXHAUSTED, trailers));
        assertEquals(Duration.ofMillis(250), ((ExhaustedException) found).retryAfter());
    }

    @Test
    public void aWatchBeginsAnewAndSaysSo() throws Exception {
        final Heard heard = new Heard();
        try (FakeAdapter adapter = new FakeAdapter(); Client client = Client.of(adapter.address)) {
            client.watch(BILLING, heard);
            for (int round = 0; round < 2; round++) {
                final StreamObserver<WatchOffsetsReply> watch = adapter.watches.take();
                watch.onNext(WatchOffsetsReply.newBuilder().setResync(true).build());
                heard.expect("resync");
                watch.onNext(WatchOffsetsReply.newBuilder()
                    .addChanged(ShardOffset.newBuilder().setNamespace("n").setGroup("g").setShard("a").setOffset(1))
                    .addChanged(ShardOffset.newBuilder().setNamespace("n").setGroup("g").setShard("b").setDeleted(true))
                    .addRemoved(GroupShards.newBuilder().setNamespace("n").setGroup("g").addShards("c")).build());
                heard.expect("changed n/g a OptionalLong[1]");
                heard.expect("changed n/g b OptionalLong.empty");
                heard.expect("removed n/g [c]");
                if (round == 0) {
                    watch.onError(Status.UNAVAILABLE.asRuntimeException());
                } else {
                    watch.onCompleted();
                }
                heard.expect("disconnected");
            }
            // Before it said anything: no more is lost.
            adapter.watches.take().onError(Status.RESOURCE_EXHAUSTED.withDescription("too many watchers").asRuntimeException());
            adapter.watches.take().onError(Status.UNIMPLEMENTED.withDescription("no such call").asRuntimeException());
            heard.expect("failed no such call");
        }
    }

    @Test
    public void aWatchThatIsClosedTellsNoMore() throws Exception {
        final Heard heard = new Heard();
        try (FakeAdapter adapter = new FakeAdapter(); Client client = Client.of(adapter.address)) {
            final Watch watch = client.watch(heard);
            adapter.watches.take().onNext(WatchOffsetsReply.newBuilder().setResync(true).build());
            heard.expect("resync");
            watch.close();
            client.watch(heard);
            adapter.watches.take().onNext(WatchOffsetsReply.newBuilder().setResync(true).build());
            heard.expect("resync"); // nothing of the first one in between
            assertTrue(adapter.watches.isEmpty());
        }
    }

    /** What a watch told, as text. */
    private static final class Heard implements Watcher {
        private final BlockingQueue<String> lines = new LinkedBlockingQueue<>();

        void expect(final String line) throws InterruptedException {
            assertEquals(line, lines.poll(FakeAdapter.PATIENCE_S, TimeUnit.SECONDS));
        }

        @Override
        public void onResync() {
            lines.add("resync");
        }

        @Override
        public void onDisconnected() {
            lines.add("disconnected");
        }

        @Override
        public void onChanged(final Group group, final String shard, final OptionalLong offset, final long epoch, final boolean isHeld) {
            lines.add("changed " + group + " " + shard + " " + offset);
        }

        @Override
        public void onRemoved(final Group group, final List<String> shards) {
            lines.add("removed " + group + " " + shards);
        }

        @Override
        public void onFailed(final OffsetAdapterException problem) {
            lines.add("failed " + problem.getMessage());
        }
    }
}
