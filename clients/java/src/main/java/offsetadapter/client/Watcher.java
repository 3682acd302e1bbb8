package offsetadapter.client;

import java.util.List;
import java.util.OptionalLong;

/**
 * What is told of changes that did not come as ordinary commits, see {@link Client#watch}. One call at a time; the next one comes after
 * it has returned.
 */
public interface Watcher {
    /**
     * From now on every change is told; what was changed before may have been missed. Forget every offset that is cached, and read again
     * where consumers stand.
     */
    void onResync();

    /**
     * Nothing is heard until the next {@link #onResync}, which comes when there is a connection again. Until then an offset that is
     * cached may be an old one.
     */
    void onDisconnected();

    /**
     * A shard was reset, cloned onto, imported, rewound, deleted, or taken from the Meta Service.
     *
     * @param offset what stands, unsigned; empty: it was deleted
     * @param epoch what a cache has with a larger (epoch, offset) is newer than this
     * @param isHeld nobody has taken up the reset
     */
    void onChanged(Group group, String shard, OptionalLong offset, long epoch, boolean isHeld);

    /**
     * Shards that are no longer at this adapter: handed over, or expired.
     *
     * @param shards empty: all of the group
     */
    void onRemoved(Group group, List<String> shards);

    /** The watch has ended by what a further attempt does not mend, such as a {@link RefusedException}. */
    void onFailed(OffsetAdapterException problem);
}
