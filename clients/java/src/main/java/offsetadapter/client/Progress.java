package offsetadapter.client;

import offsetadapter.rpc.ShardCommit;

/** The next offset to read of a shard, and what may be told beside it. */
public final class Progress {
    private final String shard;
    private final long offset;
    private long epoch;
    private String metadata = "";
    private String topic = "";
    private int partition;
    private boolean hasBounds;
    private long low;
    private long high;
    private String logId = "";

    private Progress(final String shard, final long offset) {
        this.shard = Names.check(shard, "shard");
        this.offset = offset;
    }

    private Progress(final Progress other) {
        this(other.shard, other.offset);
        epoch = other.epoch;
        metadata = other.metadata;
        topic = other.topic;
        partition = other.partition;
        hasBounds = other.hasBounds;
        low = other.low;
        high = other.high;
        logId = other.logId;
    }

    /**
     * Every message below {@code offset} is done; the next one to read has this offset.
     *
     * @throws InvalidException for a negative offset: "no offset" is not to be committed. {@link #ofUnsigned} takes 2^63 and more
     */
    public static Progress of(final String shard, final long offset) {
        if (offset < 0) {
            throw new InvalidException("offset", offset + " of " + shard + " is negative; for 2^63 and more say Progress.ofUnsigned");
        }
        return new Progress(shard, offset);
    }

    /** The same with the bits of an unsigned 64-bit number, as {@link Long#parseUnsignedLong} reads them. */
    public static Progress ofUnsigned(final String shard, final long offset) {
        return new Progress(shard, offset);
    }

    public String shard() {
        return shard;
    }

    /** The next offset to read, unsigned. */
    public long offset() {
        return offset;
    }

    /** The epoch; 0: unknown. */
    public long epoch() {
        return epoch;
    }

    /**
     * With the epoch that was read with the offset, or that a later commit was {@link Committed#raised raised} to: then a commit that is
     * in flight cannot undo a reset.
     */
    public Progress epoch(final long read) {
        final Progress other = new Progress(this);
        other.epoch = read;
        return other;
    }

    /** With at most 4,096 bytes that are kept with the offset. */
    public Progress metadata(final String text) {
        final Progress other = new Progress(this);
        other.metadata = text;
        return other;
    }

    /** With topic and partition, which travel to the Meta Service with the offset. */
    public Progress labels(final String ofTopic, final int ofPartition) {
        final Progress other = new Progress(this);
        other.topic = ofTopic;
        other.partition = ofPartition;
        return other;
    }

    /** With the log's first readable offset, and the one that its next message will get. Lag is counted by them. */
    public Progress bounds(final long first, final long next) {
        final Progress other = new Progress(this);
        other.hasBounds = true;
        other.low = first;
        other.high = next;
        return other;
    }

    /** With the bounds: which log they are of, any text that is another one when the log was made anew. */
    public Progress logId(final String id) {
        final Progress other = new Progress(this);
        other.logId = id;
        return other;
    }

    /** True if it fits into the columns of a request. */
    boolean isPlain() {
        return metadata.isEmpty() && topic.isEmpty() && partition == 0 && !hasBounds && logId.isEmpty();
    }

    /** About how much it takes of a request, in plain offsets. */
    int weight() {
        return 1 + (metadata.length() + topic.length() + logId.length()) * 3 / 512;
    }

    ShardCommit toProto() {
        final ShardCommit.Builder commit = ShardCommit.newBuilder().setShard(shard).setOffset(offset).setEpoch(epoch)
            .setMetadata(metadata).setTopic(topic).setPartition(partition).setLogId(logId);
        return (hasBounds ? commit.setLowWatermark(low).setHighWatermark(high) : commit).build();
    }
}
