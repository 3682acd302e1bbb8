package offsetadapter.client;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import offsetadapter.rpc.GroupShards;

/** Which shards of a group: all that have an offset, or those that are named. A list that is empty by mistake does not mean all. */
public final class Shards {
    private static final Shards ALL = new Shards(new ArrayList<>());

    private final List<String> names;

    private Shards(final List<String> names) {
        this.names = names;
    }

    /** Every shard of the group. */
    public static Shards all() {
        return ALL;
    }

    /**
     * These, at least one.
     *
     * @throws InvalidException if none is named, or one is no name
     */
    public static Shards of(final String... names) {
        return of(Arrays.asList(names));
    }

    /** The same of a collection. */
    public static Shards of(final Collection<String> names) {
        final List<String> copy = new ArrayList<>(names);
        if (copy.isEmpty()) {
            throw new InvalidException("shards", "none is named; for every shard of the group say Shards.all()");
        }
        for (int at = 0; at < copy.size(); at++) {
            Names.check(copy.get(at), "shards[" + at + "]");
        }
        return new Shards(copy);
    }

    GroupShards of(final Group group) {
        return GroupShards.newBuilder().setNamespace(group.namespace()).setGroup(group.name()).addAllShards(names).build();
    }
}
