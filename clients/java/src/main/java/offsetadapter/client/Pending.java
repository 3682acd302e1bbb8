package offsetadapter.client;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import offsetadapter.rpc.Raised;
import offsetadapter.rpc.Superseded;

/** A commit that is not answered. Commits guards what is not final. */
final class Pending {
    final Commit commit;
    final List<Shard> shards;
    final int weight;
    final long deadlineNanos;
    final CompletableFuture<Committed> answer = new CompletableFuture<>();
    /** Completes it at its deadline. */
    Future<?> alarm;
    /** Sent in a request of its own. */
    boolean isAlone;
    /** Its last request was lost: it waits for the end of the pause. */
    boolean isLost;
    /** What of the reply concerns it; null: nothing. */
    List<Superseded> superseded;
    List<Raised> raised;

    Pending(final Commit commit, final long deadlineNanos) {
        this.commit = commit;
        this.deadlineNanos = deadlineNanos;
        this.weight = commit.weight();
        this.isAlone = commit.isOverwrite();
        shards = new ArrayList<>(commit.progress().size());
        for (final Progress progress : commit.progress()) {
            shards.add(new Shard(commit.group().namespace(), commit.group().name(), progress.shard()));
        }
    }

    /** A shard of a group. */
    static final class Shard {
        private final String namespace;
        private final String group;
        private final String name;
        private final int hash;

        Shard(final String namespace, final String group, final String name) {
            this.namespace = namespace;
            this.group = group;
            this.name = name;
            hash = Objects.hash(namespace, group, name);
        }

        @Override
        public boolean equals(final Object other) {
            return other instanceof Shard && ((Shard) other).name.equals(name) && ((Shard) other).group.equals(group)
                && ((Shard) other).namespace.equals(namespace);
        }

        @Override
        public int hashCode() {
            return hash;
        }
    }
}
