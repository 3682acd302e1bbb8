package offsetadapter.rocketmq;

import java.nio.charset.StandardCharsets;
import java.util.Objects;

/**
 * A group's queue of this broker, and how the adapter names it: the group as it is, the shard BROKER/TOPIC/QUEUE, as the importer
 * and the bridge name it (adapter/model/queues.py). Knows which names the adapter takes.
 */
final class Key {
    private static final int NAME_MAX_BYTES = 255;

    final String group;
    final String topic;
    final int queue;

    Key(final String group, final String topic, final int queue) {
        this.group = group;
        this.topic = topic;
        this.queue = queue;
    }

    /** The key of a shard that was named by `shard`; null if it is not a queue of this broker. */
    static Key of(final String broker, final String group, final String shard) {
        final int last = shard.lastIndexOf('/');
        if (last <= broker.length() || !shard.startsWith(broker + "/")) {
            return null;
        }
        final String topic = shard.substring(broker.length() + 1, last);
        final String number = shard.substring(last + 1);
        if (topic.isEmpty() || topic.indexOf('/') >= 0 || !number.matches("0|[1-9][0-9]{0,9}") || Long.parseLong(number) > Integer.MAX_VALUE) {
            return null;
        }
        return new Key(group, topic, Integer.parseInt(number));
    }

    String shard(final String broker) {
        return broker + "/" + topic + "/" + queue;
    }

    /** Why the adapter cannot have this key; null if it can. */
    String problem(final String broker) {
        if (topic.indexOf('/') >= 0) {
            return "topic " + topic + " has a /, which separates broker, topic and queue in a shard's name";
        }
        if (queue < 0) {
            return "queue " + queue + " is negative";
        }
        final String bad = nameProblem(group);
        return bad != null ? "group " + bad : (nameProblem(shard(broker)) != null ? "shard " + nameProblem(shard(broker)) : null);
    }

    private static String nameProblem(final String name) {
        if (name.isEmpty()) {
            return "is empty";
        }
        for (int at = 0; at < name.length(); at++) {
            final char letter = name.charAt(at);
            if (letter < 0x20 || letter >= 0x7f && letter < 0xa0) {
                return name + " has a control character at position " + at;
            }
            if (Character.isHighSurrogate(letter) && at + 1 < name.length() && Character.isLowSurrogate(name.charAt(at + 1))) {
                at++;
            } else if (Character.isSurrogate(letter)) {
                return name + " has half of a surrogate pair at position " + at;
            }
        }
        final int bytes = name.getBytes(StandardCharsets.UTF_8).length;
        return bytes > NAME_MAX_BYTES ? name + " is " + bytes + " bytes long; at most " + NAME_MAX_BYTES + " are allowed" : null;
    }

    @Override
    public boolean equals(final Object other) {
        return other instanceof Key && ((Key) other).queue == queue && ((Key) other).group.equals(group) && ((Key) other).topic.equals(topic);
    }

    @Override
    public int hashCode() {
        return Objects.hash(group, topic, queue);
    }

    @Override
    public String toString() {
        return topic + "@" + group + " queue " + queue;
    }
}
