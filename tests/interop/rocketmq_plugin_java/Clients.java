import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.UpdateConsumerOffsetRequestHeader;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * RocketMQ's own clients in one process: a line of stdin is a command of fields parted by tabs, a line of stdout its answer, `ok`,
 * a value or `error TEXT`. Arguments: the name server, and the broker's address.
 */
public final class Clients {
    private static final int TIMEOUT_MS = 10_000;

    private static String namesrv;
    private static String broker;
    private static DefaultMQAdminExt admin;
    private static DefaultMQProducer producer;
    private static NettyRemotingClient remoting;
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new HashMap<>();
    private static volatile boolean committing;
    private static Thread committer;

    private Clients() {
    }

    public static void main(final String[] args) throws Exception {
        namesrv = args[0];
        broker = args[1];
        final PrintStream answers = System.out;
        System.setOut(System.err);
        remoting = new NettyRemotingClient(new NettyClientConfig());
        remoting.start();
        final BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            String answer;
            try {
                answer = done(line.split("\t"));
            } catch (Throwable e) {
                answer = "error " + e;
            }
            answers.println(answer.replace("\\", "\\\\").replace("\n", "\\n"));
            answers.flush();
        }
        System.exit(0);
    }

    private static String done(final String[] a) throws Exception {
        switch (a[0]) {
            case "topic":
                admin().createAndUpdateTopicConfig(broker, new TopicConfig(a[1], Integer.parseInt(a[2]), Integer.parseInt(a[2])));
                return "ok";
            case "group": {
                final SubscriptionGroupConfig group = new SubscriptionGroupConfig();
                group.setGroupName(a[1]);
                admin().createAndUpdateSubscriptionGroupConfig(broker, group);
                return "ok";
            }
            case "produce":
                produce(a[1], Integer.parseInt(a[2]), Integer.parseInt(a[3]));
                return "ok";
            case "commit":
                commit(a[1], a[2], Integer.parseInt(a[3]), Long.parseLong(a[4]));
                return "ok";
            case "query":
                return query(a[1], a[2], Integer.parseInt(a[3]));
            case "committing":
                committing(a[1], a[2], Integer.parseInt(a[3]), a[4]);
                return "ok";
            case "committed":
                committing = false;
                committer.join();
                return "ok";
            case "consume":
                consume(a[1], a[2], a[3], a.length > 4);
                return "ok";
            case "consumed":
                CONSUMERS.remove(a[1]).shutdown();
                return "ok";
            case "mqadmin":
                return mqadmin(java.util.Arrays.copyOfRange(a, 1, a.length));
            default:
                throw new IllegalArgumentException(a[0]);
        }
    }

    private static DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            final DefaultMQAdminExt made = new DefaultMQAdminExt();
            made.setNamesrvAddr(namesrv);
            made.setInstanceName("admin");
            made.start();
            admin = made;
        }
        return admin;
    }

    private static void produce(final String topic, final int queue, final int count) throws Exception {
        if (producer == null) {
            final DefaultMQProducer made = new DefaultMQProducer("producers");
            made.setNamesrvAddr(namesrv);
            made.setInstanceName("producer");
            made.setSendMsgTimeout(TIMEOUT_MS);
            made.start();
            producer = made;
        }
        final int batch = topic.startsWith("%RETRY%") ? 1 : 500; // clients make no batches for these
        final List<Message> messages = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            messages.add(new Message(topic, ("m" + at).getBytes(StandardCharsets.UTF_8)));
            if (messages.size() == batch || at == count - 1) {
                send(messages, new MessageQueue(topic, "broker-a", queue));
                messages.clear();
            }
        }
    }

    /** Again while the route of a new topic is not known yet, which is found out before anything is sent. */
    private static void send(final List<Message> messages, final MessageQueue queue) throws Exception {
        for (int tries = 0; ; tries++) {
            try {
                if (messages.size() == 1) {
                    producer.send(messages.get(0), queue);
                } else {
                    producer.send(messages, queue);
                }
                return;
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                if (tries == 60 || !String.valueOf(e.getMessage()).contains("not exist")) {
                    throw e;
                }
                Thread.sleep(500);
            }
        }
    }

    /** A commit that is answered; a client's own are sent without waiting. */
    private static void commit(final String group, final String topic, final int queue, final long offset) throws Exception {
        final UpdateConsumerOffsetRequestHeader header = new UpdateConsumerOffsetRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(queue);
        header.setCommitOffset(offset);
        final RemotingCommand reply = remoting.invokeSync(broker, RemotingCommand.createRequestCommand(RequestCode.UPDATE_CONSUMER_OFFSET, header), TIMEOUT_MS);
        if (reply.getCode() != 0) {
            throw new IllegalStateException(reply.getCode() + ": " + reply.getRemark());
        }
    }

    private static String query(final String group, final String topic, final int queue) throws Exception {
        final QueryConsumerOffsetRequestHeader header = new QueryConsumerOffsetRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(queue);
        header.setSetZeroIfNotFound(false);
        final RemotingCommand reply = remoting.invokeSync(broker, RemotingCommand.createRequestCommand(RequestCode.QUERY_CONSUMER_OFFSET, header), TIMEOUT_MS);
        if (reply.getCode() != 0) {
            return "none " + reply.getRemark();
        }
        return reply.getExtFields().get("offset");
    }

    /** Commits the next offset of each queue in turn, and writes QUEUE OFFSET when it is acknowledged, by one write(2). */
    private static void committing(final String group, final String topic, final int queues, final String file) throws Exception {
        final FileOutputStream out = new FileOutputStream(file, true);
        committing = true;
        committer = new Thread(() -> {
            final long[] at = new long[queues];
            for (int turn = 0; committing; turn++) {
                final int queue = turn % queues;
                try {
                    commit(group, topic, queue, at[queue] + 1);
                    at[queue]++;
                    out.write((queue + " " + at[queue] + "\n").getBytes(StandardCharsets.UTF_8));
                } catch (Exception e) {
                    System.err.println("not acknowledged: " + e);
                    try {
                        Thread.sleep(50);
                    } catch (InterruptedException stop) {
                        return;
                    }
                }
            }
        });
        committer.start();
    }

    /** Writes QUEUE OFFSET for each message that is handled. With `pop` the broker gives messages out, and knows what was acknowledged. */
    private static void consume(final String group, final String topic, final String file, final boolean pop) throws Exception {
        final FileOutputStream out = new FileOutputStream(file, true);
        final DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("consumer-" + group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setClientRebalance(!pop);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (final MessageExt message : messages) {
                    out.write((message.getQueueId() + " " + message.getQueueOffset() + "\n").getBytes(StandardCharsets.UTF_8));
                }
            } catch (java.io.IOException e) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        CONSUMERS.put(group, consumer);
    }

    private static String mqadmin(final String[] args) {
        final ByteArrayOutputStream said = new ByteArrayOutputStream();
        final PrintStream before = System.out;
        System.setProperty("rocketmq.namesrv.addr", namesrv);
        System.setOut(new PrintStream(said, true));
        try {
            MQAdminStartup.main0(args, null);
        } finally {
            System.setOut(before);
        }
        return new String(said.toByteArray(), StandardCharsets.UTF_8);
    }
}
