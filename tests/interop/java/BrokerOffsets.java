import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.offset.LmqConsumerOffsetManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * A broker's offset managers, made by a BrokerController from the lines of a broker.conf. Compiles against RocketMQ 4.9 and 5.3.
 *
 * <p>`write CONF`: loads what is there, does what stdin says (offset, pull, topic, group and their fields, parted by tabs), persists
 * and stops. `halt CONF`: the same, but the process ends without closing anything. `hold CONF`: the same, and at the end of stdin
 * "ready" is printed and the store stays open until the process is killed. `load CONF`: loads, prints every offset
 * (`offset group topic queue offset`), then the answer to each question on stdin (`query group topic queue`). `encode CONF`: loads
 * and prints the table as the manager itself encodes it.
 */
public final class BrokerOffsets {
    private final BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private final BrokerController controller;
    private final ConsumerOffsetManager manager;

    private BrokerOffsets(final String conf) throws Exception {
        final Properties properties = new Properties();
        try (FileInputStream in = new FileInputStream(conf)) {
            properties.load(in);
        }
        final BrokerConfig broker = new BrokerConfig();
        final MessageStoreConfig store = new MessageStoreConfig();
        MixAll.properties2Object(properties, broker);
        MixAll.properties2Object(properties, store);
        controller = new BrokerController(broker, new NettyServerConfig(), new NettyClientConfig(), store);
        manager = controller.getConsumerOffsetManager();
        if (!load()) {
            throw new IllegalStateException("the broker does not load what is there");
        }
    }

    public static void main(final String[] args) throws Exception {
        final BrokerOffsets offsets = new BrokerOffsets(args[1]);
        switch (args[0]) {
            case "write":
                offsets.change();
                offsets.stop();
                break;
            case "halt":
                offsets.change();
                break;
            case "hold":
                offsets.change();
                say("ready");
                Thread.sleep(Long.MAX_VALUE);
                break;
            case "load":
                offsets.show();
                offsets.answer();
                break;
            case "encode":
                say(offsets.manager.encode(true));
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // without the hooks of threads that a broker leaves behind
    }

    /** Version 2 opens its store before the managers load, which only the controller itself can do. */
    private boolean load() throws Exception {
        for (final Method method : BrokerController.class.getMethods()) {
            if (method.getName().equals("initializeMetadata")) {
                return (Boolean) method.invoke(controller);
            }
        }
        return manager.load();
    }

    private void change() throws Exception {
        for (String line; (line = input.readLine()) != null; ) {
            final String[] fields = line.split("\t", -1);
            switch (fields[0]) {
                case "offset":
                    manager.commitOffset("", fields[1], fields[2], Integer.parseInt(fields[3]), Long.parseLong(fields[4]));
                    break;
                case "pull":
                    ConsumerOffsetManager.class
                        .getMethod("commitPullOffset", String.class, String.class, String.class, int.class, long.class)
                        .invoke(manager, "", fields[1], fields[2], Integer.parseInt(fields[3]), Long.parseLong(fields[4]));
                    break;
                case "topic":
                    controller.getTopicConfigManager().updateTopicConfig(new TopicConfig(fields[1]));
                    break;
                case "group":
                    controller.getSubscriptionGroupManager().findSubscriptionGroupConfig(fields[1]); // creates it
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
        manager.persist();
    }

    /** Closes a RocksDB store as the broker's shutdown does. */
    private void stop() throws Exception {
        for (final Method method : manager.getClass().getMethods()) {
            if (method.getName().equals("stop")) {
                method.invoke(manager);
            }
        }
        for (final Field field : BrokerController.class.getDeclaredFields()) {
            if (field.getName().equals("configStorage")) {
                field.setAccessible(true);
                final Object storage = field.get(controller);
                if (storage != null) {
                    storage.getClass().getMethod("shutdown").invoke(storage);
                }
            }
        }
    }

    private void show() {
        final TreeSet<String> lines = new TreeSet<>();
        for (final Map.Entry<String, ConcurrentMap<Integer, Long>> entry : manager.getOffsetTable().entrySet()) {
            for (final Map.Entry<Integer, Long> queue : entry.getValue().entrySet()) {
                lines.add(line(entry.getKey(), queue.getKey(), queue.getValue()));
            }
        }
        if (manager instanceof LmqConsumerOffsetManager) {
            for (final Map.Entry<String, Long> entry : ((LmqConsumerOffsetManager) manager).getLmqOffsetTable().entrySet()) {
                lines.add(line(entry.getKey(), 0, entry.getValue()));
            }
        }
        lines.forEach(BrokerOffsets::say);
    }

    private void answer() throws Exception {
        for (String line; (line = input.readLine()) != null; ) {
            final String[] fields = line.split("\t", -1);
            say(line + "\t" + manager.queryOffset(fields[1], fields[2], Integer.parseInt(fields[3])));
        }
    }

    private static String line(final String topicAtGroup, final int queue, final long offset) {
        final int at = topicAtGroup.indexOf('@'); // a broadcast's group has a second one
        return String.join("\t", "offset", topicAtGroup.substring(at + 1), topicAtGroup.substring(0, at), "" + queue, "" + offset);
    }

    private static void say(final String line) {
        System.out.println(line);
    }
}
