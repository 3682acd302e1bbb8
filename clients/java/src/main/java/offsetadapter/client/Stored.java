package offsetadapter.client;

import offsetadapter.rpc.ShardOffset;

/** A stored offset. */
public final class Stored {
    private final ShardOffset row;

    Stored(final ShardOffset row) {
        this.row = row;
    }

    /** The next offset to read, unsigned: one of 2^63 and more is a negative long. */
    public long offset() {
        return row.getOffset();
    }

    /** Commit with it. */
    public long epoch() {
        return row.getEpoch();
    }

    /** What was committed with the offset. */
    public String metadata() {
        return row.getMetadata();
    }

    /** Unix time in milliseconds. */
    public long committedAtMillis() {
        return row.getCommittedAtMs();
    }

    /** The topic, where it was told; else empty. */
    public String topic() {
        return row.getTopic();
    }

    /** The partition, where the topic was told. */
    public int partition() {
        return row.getPartition();
    }

    /** True while a reset is not taken up. */
    public boolean isHeld() {
        return row.getHeld();
    }

    @Override
    public String toString() {
        return Long.toUnsignedString(offset()) + " (epoch " + Long.toUnsignedString(epoch()) + ")";
    }
}
