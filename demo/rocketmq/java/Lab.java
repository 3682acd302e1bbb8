import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Collections;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Stock clients of a RocketMQ broker, one process each.
 *
 * <p>{@code consume NAMESRV GROUP TOPIC FILE MILLIS PERSIST_MS}: a push consumer; one line "queue offset" in the file for each message
 * when it was handled, which takes MILLIS. {@code control NAMESRV}: answers commands on standard input, one a line, each answer ends
 * with a line "."; see {@link #answer}.
 */
public class Lab {
    private static String namesrv;
    private static final Map<String, DefaultMQPullConsumer> CLIENTS = new HashMap<>();
    private static DefaultMQProducer producer;
    private static volatile boolean committing;
    private static Thread committer;

    public static void main(String[] args) throws Exception {
        namesrv = args[1];
        if (args[0].equals("consume")) {
            consume(args[2], args[3], args[4], Double.parseDouble(args[5]), Integer.parseInt(args[6]));
        } else {
            control();
        }
        System.exit(0);
    }

    private static void consume(String group, String topic, String file, double millis, int persistMs) throws Exception {
        FileOutputStream out = new FileOutputStream(file, true);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("consumer" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setPersistConsumerOffsetInterval(persistMs);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    if (millis > 0) {
                        Thread.sleep((long) millis, (int) ((millis % 1) * 1e6));
                    }
                    // One write for each line: what is in the file was handled, whenever this process is killed.
                    out.write((message.getQueueId() + " " + message.getQueueOffset() + "\n").getBytes(StandardCharsets.UTF_8));
                } catch (Exception error) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("consuming");
        while (System.in.read() >= 0) { // until standard input ends
        }
        consumer.shutdown();
    }

    private static void control() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                answer(line.split(" "));
            } catch (Exception error) {
                System.out.println("error " + String.valueOf(error).replace('\n', ' '));
            }
            System.out.println(".");
            System.out.flush();
        }
    }

    /**
     * {@code send TOPIC N [LIGHT]}: also to a light queue; {@code commit GROUP TOPIC RATE FILE}: begins to commit the next offset of each queue in turn, and writes
     * "queue offset" to the file when the broker has acknowledged it; {@code halt}: ends that; {@code query GROUP TOPIC}: a line
     * "queue offset" for each queue that has one; {@code update GROUP TOPIC QUEUE OFFSET}: one acknowledged commit;
     * {@code latency GROUP TOPIC N}: microseconds of acknowledged commits, p50 p99 max.
     */
    private static void answer(String[] words) throws Exception {
        switch (words[0]) {
            case "send":
                send(words[1], Integer.parseInt(words[2]), words.length > 3 ? words[3] : null);
                break;
            case "commit":
                begin(words[1], words[2], Integer.parseInt(words[3]), words[4]);
                break;
            case "halt":
                committing = false;
                if (committer != null) {
                    committer.join();
                }
                break;
            case "query":
                for (MessageQueue queue : queues(words[1], words[2])) {
                    long offset = store(words[1], words[2]).readOffset(queue, ReadOffsetType.READ_FROM_STORE);
                    if (offset == -2) {
                        throw new IllegalStateException("the broker did not answer");
                    }
                    if (offset >= 0) {
                        System.out.println(queue.getQueueId() + " " + offset);
                    }
                }
                break;
            case "update":
                for (MessageQueue queue : queues(words[1], words[2])) {
                    if (queue.getQueueId() == Integer.parseInt(words[3])) {
                        store(words[1], words[2]).updateConsumeOffsetToBroker(queue, Long.parseLong(words[4]), false);
                    }
                }
                break;
            case "latency":
                latency(words[1], words[2], Integer.parseInt(words[3]));
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static void send(String topic, int count, String light) throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("lab-producer");
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName("producer" + System.nanoTime());
            producer.setDefaultTopicQueueNums(4);
            producer.start();
        }
        for (int sent = 0; sent < count; ) {
            List<Message> batch = new ArrayList<>();
            for (int at = sent; at < Math.min(count, sent + (light == null ? 100 : 1)); at++) {
                batch.add(new Message(topic, ("m" + at).getBytes(StandardCharsets.UTF_8)));
                if (light != null) {
                    MessageAccessor.putProperty(batch.get(0), "INNER_MULTI_DISPATCH", light);
                }
            }
            for (int tries = 0; ; tries++) {
                try {
                    if (light == null) {
                        producer.send(batch, 10_000);
                    } else {
                        producer.send(batch.get(0), 10_000);
                    }
                    break;
                } catch (Exception error) {
                    if (tries > 300) {
                        throw error;
                    }
                    Thread.sleep(200);
                }
            }
            sent += batch.size();
        }
    }

    private static DefaultMQPullConsumer client(String group, String topic) throws Exception {
        DefaultMQPullConsumer client = CLIENTS.get(group);
        if (client == null) {
            client = new DefaultMQPullConsumer(group);
            client.setNamesrvAddr(namesrv);
            client.setInstanceName("pull" + System.nanoTime());
            client.setRegisterTopics(new HashSet<>(Collections.singleton(topic)));
            client.setPersistConsumerOffsetInterval(600_000);
            client.start();
            CLIENTS.put(group, client);
        }
        return client;
    }

    private static List<MessageQueue> queues(String group, String topic) throws Exception {
        DefaultMQPullConsumer client = client(group, topic);
        for (int tries = 0; ; tries++) {
            try {
                List<MessageQueue> found = new ArrayList<>(client.fetchSubscribeMessageQueues(topic));
                found.sort(Comparator.comparingInt(MessageQueue::getQueueId));
                org.apache.rocketmq.client.impl.factory.MQClientInstance factory =
                    client.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
                factory.updateTopicRouteInfoFromNameServer(topic);
                factory.sendHeartbeatToAllBrokerWithLock(); // makes the group known to the broker
                return found;
            } catch (Exception error) {
                if (tries > 300) {
                    throw error;
                }
                Thread.sleep(200);
            }
        }
    }

    private static OffsetStore store(String group, String topic) throws Exception {
        return client(group, topic).getDefaultMQPullConsumerImpl().getOffsetStore();
    }

    private static void begin(String group, String topic, int rate, String file) throws Exception {
        List<MessageQueue> queues = queues(group, topic);
        Thread.sleep(300); // the heartbeat is taken in
        OffsetStore store = store(group, topic);
        FileOutputStream out = new FileOutputStream(file, true);
        long[] at = new long[queues.size()];
        for (int number = 0; number < at.length; number++) {
            at[number] = Math.max(0, store.readOffset(queues.get(number), ReadOffsetType.READ_FROM_STORE));
        }
        committing = true;
        committer = new Thread(() -> {
            long began = System.nanoTime();
            try (FileOutputStream acknowledged = out) {
                for (long done = 0; committing; done++) {
                    int number = (int) (done % at.length);
                    store.updateConsumeOffsetToBroker(queues.get(number), at[number] + 1, false);
                    at[number]++;
                    acknowledged.write((queues.get(number).getQueueId() + " " + at[number] + "\n").getBytes(StandardCharsets.UTF_8));
                    long pause = (began + (long) (1e9 * (done + 1) / rate) - System.nanoTime()) / 1000;
                    if (pause > 0) {
                        TimeUnit.MICROSECONDS.sleep(pause);
                    }
                }
            } catch (Exception error) { // the broker is gone: what was not acknowledged does not count
                committing = false;
            }
        });
        committer.setDaemon(true);
        committer.start();
    }

    private static void latency(String group, String topic, int count) throws Exception {
        List<MessageQueue> queues = queues(group, topic);
        OffsetStore store = store(group, topic);
        long[] took = new long[count];
        for (int at = 0; at < 2 * count; at++) {
            long began = System.nanoTime();
            store.updateConsumeOffsetToBroker(queues.get(at % queues.size()), 1 + at / queues.size(), false);
            took[at % count] = System.nanoTime() - began; // the second half counts
        }
        java.util.Arrays.sort(took);
        System.out.println(took[count / 2] / 1000 + " " + took[count * 99 / 100] / 1000 + " " + took[count - 1] / 1000);
    }
}
