package offsetadapter.rocketmq;

import java.util.Collection;
import java.util.List;
import java.util.Map;

/** The adapter beside this broker, as the mirror sees it. All calls block; all may raise SidecarException. */
interface Sidecar {
    /** A commit of one offset. Epoch 0: unknown. */
    final class Offset {
        final Key key;
        final long epoch;
        final long offset;

        Offset(final Key key, final long epoch, final long offset) {
            this.key = key;
            this.epoch = epoch;
            this.offset = offset;
        }
    }

    /** What stands after a commit, where it differs from what was sent: superseded by it, or stored in a new epoch. */
    final class Committed {
        final Map<Key, Standing> superseded;
        final Map<Key, Long> raised;

        Committed(final Map<Key, Standing> superseded, final Map<Key, Long> raised) {
            this.superseded = superseded;
            this.raised = raised;
        }
    }

    /** What a watch tells, from threads of the watch. None of these blocks. */
    interface Watcher {
        /** List everything again: changes before this may be missing. */
        void resync();

        void changed(Map<Key, Standing> changed);

        void ended(String why);
    }

    /** A call has failed. */
    final class SidecarException extends Exception {
        private static final long serialVersionUID = 1;
        /** True: nobody answered, or not now. False: it was refused and would be again. */
        final boolean absent;

        SidecarException(final String message, final boolean absent) {
            super(message);
            this.absent = absent;
        }
    }

    /** Stores at most 5,000 offsets. With `overwrite` lower ones are stored in the next epoch. */
    Committed commit(List<Offset> offsets, boolean overwrite) throws SidecarException;

    /** Sets offsets of one group as an operator's reset does, in the next era. Returns what stands then. */
    Map<Key, Standing> reset(String group, List<Offset> offsets) throws SidecarException;

    /** Deletes offsets of one group. Returns what stands then. */
    Map<Key, Standing> delete(String group, List<Key> keys) throws SidecarException;

    /** All offsets of this broker that the sidecar has, tombstones too. */
    Map<Key, Standing> list() throws SidecarException;

    /** All offsets of this broker of some groups; with `store` as the Meta Service has them. */
    Map<Key, Standing> read(Collection<String> groups, boolean store) throws SidecarException;

    /** One offset as the Meta Service has it; null if there is none. */
    Standing read(Key key) throws SidecarException;

    /** Watches what others change until `ended` is called. */
    void watch(Watcher watcher);

    void close();
}
