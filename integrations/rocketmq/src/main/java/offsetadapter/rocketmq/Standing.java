package offsetadapter.rocketmq;

/** What the adapter holds under a key, as far as this broker knows. Epoch 0 means unknown. */
final class Standing {
    final long epoch;
    final long offset;
    /** A tombstone. */
    final boolean deleted;

    Standing(final long epoch, final long offset, final boolean deleted) {
        this.epoch = epoch;
        this.offset = offset;
        this.deleted = deleted;
    }

    static Standing live(final long epoch, final long offset) {
        return new Standing(epoch, offset, false);
    }

    /** True if this is larger, in the adapter's order: epoch, offset, live. */
    boolean above(final Standing other) {
        if (epoch != other.epoch) {
            return epoch > other.epoch;
        }
        return offset != other.offset ? offset > other.offset : !deleted && other.deleted;
    }

    @Override
    public String toString() {
        return (deleted ? "deleted" : String.valueOf(offset)) + " in epoch " + epoch;
    }
}
