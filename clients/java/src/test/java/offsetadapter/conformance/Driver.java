package offsetadapter.conformance;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import offsetadapter.client.Client;
import offsetadapter.client.Commit;
import offsetadapter.client.Committed;
import offsetadapter.client.DamagedException;
import offsetadapter.client.ExhaustedException;
import offsetadapter.client.FencedException;
import offsetadapter.client.Group;
import offsetadapter.client.InvalidException;
import offsetadapter.client.LostException;
import offsetadapter.client.MovedException;
import offsetadapter.client.OffsetAdapterException;
import offsetadapter.client.Progress;
import offsetadapter.client.RefusedException;
import offsetadapter.client.Shards;
import offsetadapter.client.Stored;
import offsetadapter.client.Watcher;

/** The driver of tests/conformance: commands as lines of JSON on stdin, answers on stdout. clients/SPEC.md says what they are. */
public final class Driver {
    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private static final Map<Class<?>, String> KINDS = Map.of(LostException.class, "lost", MovedException.class, "moved",
        FencedException.class, "fenced", InvalidException.class, "invalid", ExhaustedException.class, "exhausted", RefusedException.class, "refused",
        DamagedException.class, "damaged");

    private final Client client;
    private final PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private final Map<Integer, CompletableFuture<?>> calls = new ConcurrentHashMap<>();
    private final ExecutorService threads = Executors.newCachedThreadPool(task -> {
        final Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    });

    private Driver(final Client client) {
        this.client = client;
    }

    public static void main(final String[] arguments) throws IOException {
        if (arguments.length != 2) {
            throw new IllegalArgumentException("usage: Driver ADDRESS SECONDS");
        }
        final Duration timeout = Duration.ofMillis(Math.round(Double.parseDouble(arguments[1]) * 1_000));
        try (Client client = Client.builder(arguments[0]).timeout(timeout).build()) {
            new Driver(client).serve();
        }
    }

    private void serve() throws IOException {
        final BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        answer(Map.of("ready", true));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            final JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            final int id = command.get("id").getAsInt();
            switch (command.get("call").getAsString()) {
                case "drop":
                    final CompletableFuture<?> dropped = calls.get(command.get("of").getAsInt());
                    if (dropped != null) {
                        dropped.cancel(true);
                    }
                    answer(Map.of("id", id));
                    break;
                case "watch":
                    client.watch(new Teller(id));
                    break;
                case "commit":
                    commit(id, command);
                    break;
                default:
                    threads.execute(() -> answer(id, () -> call(command)));
            }
        }
    }

    /** The answer to a call that this thread waits for. */
    private interface Call {
        Map<String, Object> make();
    }

    private void answer(final int id, final Call call) {
        Map<String, Object> found;
        try {
            found = new LinkedHashMap<>(call.make());
        } catch (final OffsetAdapterException problem) {
            found = failed(problem);
        }
        found.put("id", id);
        answer(found);
    }

    private void commit(final int id, final JsonObject command) {
        final Commit commit;
        try {
            commit = commitOf(command);
        } catch (final OffsetAdapterException problem) {
            answer(id, () -> failed(problem));
            return;
        }
        final CompletableFuture<Committed> answer = client.commitAsync(commit);
        calls.put(id, answer);
        answer.whenComplete((done, thrown) -> {
            calls.remove(id);
            if (!answer.isCancelled()) {
                final Throwable cause = thrown instanceof CompletionException ? thrown.getCause() : thrown;
                answer(id, () -> thrown == null ? committed(done) : failed((OffsetAdapterException) cause));
            }
        });
    }

    private Map<String, Object> call(final JsonObject command) {
        final Group group = groupOf(command);
        final Shards shards = shardsOf(command);
        switch (command.get("call").getAsString()) {
            case "persist":
                client.persist(group, shards);
                return Collections.emptyMap();
            case "remove":
                return Map.of("removed", client.remove(group, shards));
            case "delete":
                return Map.of("deleted", client.delete(group, shards));
            case "peek":
                return offsets(client.peek(group, shards));
            default:
                return offsets(client.read(group, shards));
        }
    }

    private static Map<String, Object> offsets(final Map<String, Stored> found) {
        final Map<String, Object> rows = new HashMap<>();
        found.forEach((shard, row) -> rows.put(shard,
            Map.of("offset", unsigned(row.offset()), "epoch", unsigned(row.epoch()), "held", row.isHeld(), "metadata", row.metadata())));
        return Map.of("offsets", rows);
    }

    private static Map<String, Object> committed(final Committed done) {
        final List<Object> behind = new ArrayList<>();
        for (final Committed.Stands row : done.behind()) {
            behind.add(Map.of("shard", row.shard(), "offset", unsigned(row.offset()), "epoch", unsigned(row.epoch())));
        }
        final Map<String, Object> raised = new HashMap<>();
        done.raised().forEach((shard, epoch) -> raised.put(shard, unsigned(epoch)));
        return Map.of("behind", behind, "raised", raised);
    }

    private static Map<String, Object> failed(final OffsetAdapterException problem) {
        final Map<String, Object> found = new LinkedHashMap<>();
        found.put("error", KINDS.get(problem.getClass()));
        found.put("message", problem.getMessage());
        if (problem instanceof InvalidException) {
            found.put("field", ((InvalidException) problem).field());
        }
        if (problem instanceof MovedException) {
            final List<Object> rows = new ArrayList<>();
            for (final MovedException.Moved row : ((MovedException) problem).shards()) {
                rows.add(standing(row.shard(), row.offset(), row.epoch(), row.isHeld()));
            }
            found.put("moved", rows);
        }
        return found;
    }

    private static Map<String, Object> standing(final String shard, final OptionalLong offset, final long epoch, final boolean isHeld) {
        final Map<String, Object> row = new LinkedHashMap<>();
        row.put("shard", shard);
        row.put("offset", offset.isPresent() ? unsigned(offset.getAsLong()) : null);
        row.put("epoch", unsigned(epoch));
        row.put("held", isHeld);
        return row;
    }

    private static Number unsigned(final long bits) {
        return new BigInteger(Long.toUnsignedString(bits));
    }

    private static Group groupOf(final JsonObject command) {
        final Group group = Group.of(text(command, "group"));
        return text(command, "namespace").isEmpty() ? group : group.inNamespace(text(command, "namespace"));
    }

    private static Shards shardsOf(final JsonObject command) {
        final JsonElement names = command.get("shards");
        if (names == null || names.isJsonNull()) {
            return Shards.all();
        }
        final List<String> list = new ArrayList<>();
        names.getAsJsonArray().forEach(name -> list.add(name.getAsString()));
        return Shards.of(list);
    }

    private static Commit commitOf(final JsonObject command) {
        Commit commit = Commit.of(groupOf(command));
        for (final JsonElement element : command.getAsJsonArray("offsets")) {
            final JsonObject row = element.getAsJsonObject();
            commit = commit.progress(Progress.ofUnsigned(text(row, "shard"), bits(row, "offset")).epoch(bits(row, "epoch"))
                .metadata(text(row, "metadata")));
        }
        if (command.has("overwrite") && command.get("overwrite").getAsBoolean()) {
            commit = commit.overwrite();
        }
        return command.has("generation") ? commit.member(bits(command, "generation"), text(command, "member")) : commit;
    }

    private static String text(final JsonObject command, final String key) {
        return command.has(key) ? command.get(key).getAsString() : "";
    }

    private static long bits(final JsonObject command, final String key) {
        return command.has(key) ? command.get(key).getAsBigInteger().longValue() : 0;
    }

    /** Print one line; only whole lines are written, from any thread. */
    private void answer(final Map<String, ?> line) {
        final String text = GSON.toJson(line) + "\n";
        synchronized (out) {
            out.print(text);
            out.flush();
        }
    }

    /** A line for each change. */
    private final class Teller implements Watcher {
        private final int id;

        Teller(final int id) {
            this.id = id;
        }

        @Override
        public void onResync() {
            answer(Map.of("id", id, "change", "resync"));
        }

        @Override
        public void onDisconnected() {
            answer(Map.of("id", id, "change", "disconnected"));
        }

        @Override
        public void onChanged(final Group group, final String shard, final OptionalLong offset, final long epoch, final boolean isHeld) {
            final Map<String, Object> line = standing(shard, offset, epoch, isHeld);
            line.put("id", id);
            line.put("change", "changed");
            line.put("group", group.name());
            answer(line);
        }

        @Override
        public void onRemoved(final Group group, final List<String> shards) {
            answer(Map.of("id", id, "change", "removed", "group", group.name(), "shards", shards));
        }

        @Override
        public void onFailed(final OffsetAdapterException problem) {
            answer(id, () -> failed(problem));
        }
    }
}
