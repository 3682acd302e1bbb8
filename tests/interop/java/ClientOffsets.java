import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.store.LocalFileOffsetStore;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A broadcasting client's offset store, below the directory of -Drocketmq.client.localOffsetStoreDir. For RocketMQ 4.9 and 5.3.
 *
 * <p>`write CLIENT GROUP`: loads what is there, puts in what stdin says (`broker topic queue offset`, parted by tabs) and persists.
 * `load CLIENT GROUP`: loads and prints every offset in that form.
 */
public final class ClientOffsets {
    private ClientOffsets() {
    }

    public static void main(final String[] args) throws Exception {
        final LocalFileOffsetStore store = new LocalFileOffsetStore(new MQClientInstance(new ClientConfig(), 0, args[1]), args[2]);
        store.load();
        if (args[0].equals("write")) {
            change(store);
        } else {
            show(store);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // a client's threads are not daemons
    }

    private static void change(final LocalFileOffsetStore store) throws Exception {
        final BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        final Set<MessageQueue> queues = new HashSet<>();
        for (String line; (line = input.readLine()) != null; ) {
            final String[] fields = line.split("\t", -1);
            final MessageQueue queue = new MessageQueue(fields[1], fields[0], Integer.parseInt(fields[2]));
            store.updateOffset(queue, Long.parseLong(fields[3]), false);
            queues.add(queue);
        }
        store.persistAll(queues);
    }

    private static void show(final LocalFileOffsetStore store) {
        final TreeSet<String> lines = new TreeSet<>();
        for (final Map.Entry<MessageQueue, Long> entry : store.cloneOffsetTable("").entrySet()) {
            final MessageQueue queue = entry.getKey();
            lines.add(String.join("\t", queue.getBrokerName(), queue.getTopic(), "" + queue.getQueueId(), "" + entry.getValue()));
        }
        lines.forEach(System.out::println);
    }
}
