package offsetadapter.client;

import java.util.Collections;
import java.util.List;
import java.util.Map;

/** What a durable commit did. */
public final class Committed {
    static final Committed PLAIN = new Committed(Collections.emptyList(), Collections.emptyMap());

    private final List<Stands> behind;
    private final Map<String, Long> raised;

    Committed(final List<Stands> behind, final Map<String, Long> raised) {
        this.behind = Collections.unmodifiableList(behind);
        this.raised = Collections.unmodifiableMap(raised);
    }

    /** Shards of which a larger offset was stored already: this commit came late, or repeats an earlier one. Nothing is lost. */
    public List<Stands> behind() {
        return behind;
    }

    /**
     * Shard -> the new epoch in which it was stored: a rewind, or the first commit after a reset. Name it in the next commits of the
     * shard.
     */
    public Map<String, Long> raised() {
        return raised;
    }

    /** The offset that stands in the place of one that was committed late. */
    public static final class Stands {
        private final String shard;
        private final long offset;
        private final long epoch;

        Stands(final String shard, final long offset, final long epoch) {
            this.shard = shard;
            this.offset = offset;
            this.epoch = epoch;
        }

        public String shard() {
            return shard;
        }

        /** Unsigned. */
        public long offset() {
            return offset;
        }

        public long epoch() {
            return epoch;
        }
    }
}
