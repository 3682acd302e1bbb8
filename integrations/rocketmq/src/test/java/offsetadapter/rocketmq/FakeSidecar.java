package offsetadapter.rocketmq;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The adapter's rules in memory, with failures on request: docs/design/epochs.md. */
final class FakeSidecar implements Sidecar {
    final Map<Key, Standing> rows = new HashMap<>();
    /** What only the Meta Service has. */
    final Map<Key, Standing> stored = new HashMap<>();
    final List<Integer> requests = new ArrayList<>();
    final Set<String> refusedGroups = new HashSet<>();
    boolean absent;
    /** Calls are carried out, and their answers are lost. */
    boolean losesAnswers;
    boolean deniesAdmin;
    /** Rewinds, resets and deletes need the Meta Service. */
    boolean metaAbsent;
    Watcher watcher;
    int commits;
    /** Runs when a commit has been carried out, before its answer. */
    Runnable meanwhile = () -> { };

    @Override
    public Committed commit(final List<Offset> offsets, final boolean overwrite) throws SidecarException {
        arrive();
        needMeta(overwrite);
        for (final Offset row : offsets) {
            if (refusedGroups.contains(row.key.group)) {
                throw new SidecarException("INVALID_ARGUMENT: group", false);
            }
        }
        requests.add(offsets.size());
        final Map<Key, Standing> superseded = new HashMap<>();
        final Map<Key, Long> raised = new HashMap<>();
        for (final Offset row : offsets) {
            commits++;
            final Standing before = rows.get(row.key);
            if (before == null) {
                rows.put(row.key, Standing.live(Math.max(1, row.epoch), row.offset));
            } else if (row.epoch != 0 && row.epoch < before.epoch) {
                superseded.put(row.key, before);
            } else if (row.offset > before.offset || row.offset == before.offset) {
                rows.put(row.key, Standing.live(before.epoch, row.offset));
            } else if (overwrite || before.deleted) {
                rows.put(row.key, Standing.live(before.epoch + 1, row.offset));
                raised.put(row.key, before.epoch + 1);
            } else {
                superseded.put(row.key, before);
            }
        }
        meanwhile.run();
        answer();
        return new Committed(superseded, raised);
    }

    @Override
    public Map<Key, Standing> reset(final String group, final List<Offset> offsets) throws SidecarException {
        arrive();
        needMeta(true);
        if (deniesAdmin) {
            throw new SidecarException("PERMISSION_DENIED: OffsetAdmin is off on TCP", false);
        }
        final Map<Key, Standing> after = new HashMap<>();
        offsets.forEach(row -> after.put(row.key, Standing.live(nextEra(row.key), row.offset)));
        rows.putAll(after);
        answer();
        return after;
    }

    @Override
    public Map<Key, Standing> delete(final String group, final List<Key> keys) throws SidecarException {
        arrive();
        needMeta(true);
        if (deniesAdmin) {
            throw new SidecarException("PERMISSION_DENIED: OffsetAdmin is off on TCP", false);
        }
        final Map<Key, Standing> after = new HashMap<>();
        keys.forEach(key -> after.put(key, new Standing(nextEra(key), 0, true)));
        rows.putAll(after);
        answer();
        return after;
    }

    /** Somebody else resets an offset. */
    void resetByOther(final Key key, final long offset) {
        rows.put(key, Standing.live(nextEra(key), offset));
    }

    void deleteByOther(final Key key) {
        rows.put(key, new Standing(nextEra(key), 0, true));
    }

    private long nextEra(final Key key) {
        final Standing before = rows.get(key);
        return ((before == null ? 0 : before.epoch >> 32) + 1) << 32;
    }

    @Override
    public Map<Key, Standing> list() throws SidecarException {
        arrive();
        return new HashMap<>(rows);
    }

    @Override
    public Map<Key, Standing> read(final Collection<String> groups, final boolean store) throws SidecarException {
        arrive();
        if (store) {
            stored.forEach((key, standing) -> rows.merge(key, standing, (a, b) -> b.above(a) ? b : a));
        }
        final Map<Key, Standing> found = new HashMap<>();
        rows.forEach((key, standing) -> {
            if (groups.contains(key.group) && !standing.deleted) {
                found.put(key, standing);
            }
        });
        return found;
    }

    @Override
    public Standing read(final Key key) throws SidecarException {
        arrive();
        final Standing standing = rows.getOrDefault(key, stored.get(key));
        return standing == null || standing.deleted ? null : standing;
    }

    @Override
    public void watch(final Watcher by) {
        watcher = by;
    }

    @Override
    public void close() {
    }

    private void arrive() throws SidecarException {
        if (absent) {
            throw new SidecarException("UNAVAILABLE: io exception", true);
        }
    }

    private void needMeta(final boolean needed) throws SidecarException {
        if (needed && metaAbsent) {
            throw new SidecarException("UNAVAILABLE: the Meta Service is out of reach", true);
        }
    }

    private void answer() throws SidecarException {
        if (losesAnswers) {
            throw new SidecarException("DEADLINE_EXCEEDED", true);
        }
    }
}
