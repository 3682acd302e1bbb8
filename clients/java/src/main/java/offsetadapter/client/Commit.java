package offsetadapter.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * Offsets of one group, which are durable together.
 *
 * <pre>{@code
 * Commit.of(group).offset("orders/0", 43).offset("orders/1", 7)
 * Commit.of(group).progress(Progress.of("orders/0", 43).epoch(1)).member(7, "worker-3")
 * }</pre>
 */
public final class Commit {
    private final Group group;
    private final List<Progress> progress;
    private final Member member;
    private final boolean overwrite;

    private Commit(final Group group, final List<Progress> progress, final Member member, final boolean overwrite) {
        this.group = group;
        this.progress = progress;
        this.member = member;
        this.overwrite = overwrite;
    }

    /** An empty commit of a group. It only increases: a lower offset changes nothing. */
    public static Commit of(final Group group) {
        return new Commit(group, Collections.emptyList(), null, false);
    }

    /**
     * With the next offset to read of one more shard.
     *
     * @throws InvalidException as {@link Progress#of}
     */
    public Commit offset(final String shard, final long offset) {
        return progress(Progress.of(shard, offset));
    }

    /** With one more offset, and what is told beside it. */
    public Commit progress(final Progress more) {
        return progress(Collections.singletonList(more));
    }

    /** With more offsets. */
    public Commit progress(final Collection<Progress> more) {
        final List<Progress> all = new ArrayList<>(progress.size() + more.size());
        all.addAll(progress);
        all.addAll(more);
        return new Commit(group, all, member, overwrite);
    }

    /**
     * Fenced: refused as {@link FencedException} when a newer generation of the group has committed.
     *
     * @param generation the group's, as in Kafka: it grows with each rebalance
     * @param id shown in errors and by {@code offset-adapter groups describe}; may be empty
     */
    public Commit member(final long generation, final String id) {
        return new Commit(group, progress, new Member(generation, id), overwrite);
    }

    /** A lower offset is a rewind, stored under the next epoch. */
    public Commit overwrite() {
        return new Commit(group, progress, member, true);
    }

    Group group() {
        return group;
    }

    List<Progress> progress() {
        return progress;
    }

    /** Null if it is not fenced. */
    Member member() {
        return member;
    }

    boolean isOverwrite() {
        return overwrite;
    }

    int weight() {
        int sum = 0;
        for (final Progress each : progress) {
            sum += each.weight();
        }
        return sum;
    }

    /** What would be refused anyway is refused here, where it does not make other commits wait that share its request. */
    void check() {
        if (progress.isEmpty()) {
            throw new InvalidException("shards", "no offset is in the commit; at least one is needed");
        }
        if (progress.size() > 1) {
            final Set<String> seen = new HashSet<>(progress.size() * 2);
            for (int at = 0; at < progress.size(); at++) {
                if (!seen.add(progress.get(at).shard())) {
                    throw new InvalidException("shards[" + at + "].shard", progress.get(at).shard() + " is in the commit twice");
                }
            }
        }
    }

    /** The committing member of a group. */
    static final class Member {
        final long generation;
        final String id;

        Member(final long generation, final String id) {
            this.generation = generation;
            this.id = id;
        }

        @Override
        public boolean equals(final Object other) {
            return other instanceof Member && ((Member) other).generation == generation && ((Member) other).id.equals(id);
        }

        @Override
        public int hashCode() {
            return 31 * Long.hashCode(generation) + id.hashCode();
        }
    }
}
