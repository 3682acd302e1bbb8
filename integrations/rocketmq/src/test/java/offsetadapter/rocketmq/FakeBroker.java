package offsetadapter.rocketmq;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** A broker's table, and the ends of its queues. */
final class FakeBroker implements Broker {
    final Map<Key, Long> table = new HashMap<>();
    final Map<String, Long> ends = new TreeMap<>();
    final Set<String> subscribed = new HashSet<>();
    /** Groups and topics that were deleted. */
    final Set<String> deleted = new HashSet<>();
    final Set<Key> resets = new LinkedHashSet<>();

    @Override
    public String name() {
        return "broker-a";
    }

    @Override
    public long offset(final Key key) {
        return table.getOrDefault(key, NONE);
    }

    @Override
    public Collection<Key> keys() {
        return new ArrayList<>(table.keySet());
    }

    @Override
    public Collection<Key> queues() {
        final Collection<Key> queues = new ArrayList<>();
        ends.keySet().forEach(name -> queues.add(new Key("", name.split("/")[0], Integer.parseInt(name.split("/")[1]))));
        return queues;
    }

    @Override
    public Set<String> groups() {
        final Set<String> groups = new HashSet<>(subscribed);
        table.keySet().forEach(key -> groups.add(key.group));
        return groups;
    }

    @Override
    public boolean knows(final Key key) {
        return !deleted.contains(key.group) && !deleted.contains(key.topic);
    }

    @Override
    public long end(final Key key) {
        return ends.getOrDefault(key.topic + "/" + key.queue, NONE);
    }

    @Override
    public void adopt(final Key key, final long offset) {
        table.put(key, offset);
    }

    @Override
    public void reset(final Key key, final long offset) {
        resets.add(key);
        table.put(key, offset);
    }

    @Override
    public void remove(final Key key) {
        table.remove(key);
    }
}
