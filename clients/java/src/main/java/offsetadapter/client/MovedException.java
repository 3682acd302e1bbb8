package offsetadapter.client;

import java.util.Collections;
import java.util.List;
import java.util.OptionalLong;

/**
 * Shards of the commit were reset, deleted, cloned or rewound by somebody else, so their offsets were <b>not</b> taken. All other shards
 * of the commit are durable.
 *
 * <p>{@linkplain Client#read Read} these shards, and go on from there.
 */
public final class MovedException extends OffsetAdapterException {
    private static final long serialVersionUID = 1L;

    private final transient List<Moved> shards;

    MovedException(final List<Moved> shards) {
        super(text(shards));
        this.shards = Collections.unmodifiableList(shards);
    }

    private static String text(final List<Moved> shards) {
        final StringBuilder text = new StringBuilder("not taken, since somebody moved these shards; read them, and go on from there:");
        for (final Moved row : shards) {
            text.append(' ').append(row);
        }
        return text.toString();
    }

    /** What stands of each. */
    public List<Moved> shards() {
        return shards;
    }

    @Override
    OffsetAdapterException copy() {
        return new MovedException(shards);
    }

    /** A shard that somebody else moved. */
    public static final class Moved {
        private final String shard;
        private final OptionalLong offset;
        private final long epoch;
        private final boolean isHeld;

        Moved(final String shard, final OptionalLong offset, final long epoch, final boolean isHeld) {
            this.shard = shard;
            this.offset = offset;
            this.epoch = epoch;
            this.isHeld = isHeld;
        }

        public String shard() {
            return shard;
        }

        /** The offset that stands now, unsigned; empty if it was deleted, which is not 0. */
        public OptionalLong offset() {
            return offset;
        }

        /** Its epoch. A commit that names it is taken. */
        public long epoch() {
            return epoch;
        }

        /** True while nobody has taken up the reset: a commit without an epoch changes nothing. */
        public boolean isHeld() {
            return isHeld;
        }

        @Override
        public String toString() {
            final String stands = offset.isPresent() ? "now " + Long.toUnsignedString(offset.getAsLong()) : "deleted";
            return shard + " (" + stands + ", epoch " + Long.toUnsignedString(epoch) + ")";
        }
    }
}
