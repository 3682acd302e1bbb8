package offsetadapter.rocketmq;

import java.util.Collection;
import java.util.Set;

/** The broker's side: its table of consumer offsets and the bounds of its queues. */
interface Broker {
    /** A queue, or its end, that this broker does not have. */
    long NONE = -1;

    String name();

    /** The offset that a consumer would get; NONE if there is none. */
    long offset(Key key);

    /** All keys of the table that can be listed. */
    Collection<Key> keys();

    /** All queues of all topics, as keys without a group. */
    Collection<Key> queues();

    /** Groups that exist here, with offsets or without. */
    Set<String> groups();

    /**
     * False if the broker does not know the group or the topic of a key: then they were deleted, and their offsets with them. Light
     * groups and topics are in no table, and count as known.
     */
    boolean knows(Key key);

    /** The offset that the next message of the queue gets; NONE if this broker has no such queue; Long.MAX_VALUE if that is unknown. */
    long end(Key key);

    /** Takes over an offset, as if a consumer had committed it. */
    void adopt(Key key, long offset);

    /** Moves a group's offset in either direction, and its online consumers with it. */
    void reset(Key key, long offset);

    /** Forgets the offset of a queue. */
    void remove(Key key);
}
