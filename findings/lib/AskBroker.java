import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.sysflag.PullSysFlag;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumeType;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.HeartbeatData;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;

/**
 * Asks a broker by RocketMQ's own remoting client: one request for each line of standard input, printed with its answer.
 *
 * <pre>
 * topic NAME QUEUES                          make it
 * group NAME                                 make it
 * send TOPIC QUEUE COUNT [LIGHT_TOPIC]       messages
 * end TOPIC QUEUE LEAST                      wait until the queue has so many messages
 * consumer GROUP TOPIC...                    a consumer's heartbeat
 * commit GROUP TOPIC QUEUE OFFSET
 * query GROUP TOPIC QUEUE                    the offset, or why there is none
 * pull GROUP TOPIC QUEUE OFFSET
 * table                                      all offsets, as a slave asks for them
 * until TEXT                                 wait until the table has it, and print the table
 * correction TOPIC COMPARED_GROUP FILTERED_GROUP
 * reset GROUP TOPIC QUEUE OFFSET             at the server
 * clone FROM TO [TOPIC]
 * delete GROUP                               with its offsets
 * </pre>
 */
public final class AskBroker {
    private static NettyRemotingClient client;
    private static String broker;

    public static void main(final String[] args) throws Exception {
        broker = args[0];
        client = new NettyRemotingClient(new NettyClientConfig());
        client.start();
        final BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            System.out.println("  " + line + " -> " + answer(line.split(" ")));
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static String answer(final String[] word) throws Exception {
        switch (word[0]) {
            case "topic":
                return outcome(ask(RequestCode.UPDATE_AND_CREATE_TOPIC, null, "topic", word[1], "defaultTopic", "TBW102",
                    "readQueueNums", word[2], "writeQueueNums", word[2], "perm", "6", "topicFilterType", "SINGLE_TAG",
                    "topicSysFlag", "0", "order", "false"));
            case "group":
                return outcome(ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, "{\"groupName\":\"" + word[1] + "\"}"));
            case "send":
                return send(word);
            case "commit":
                return outcome(ask(RequestCode.UPDATE_CONSUMER_OFFSET, null, "consumerGroup", word[1], "topic", word[2],
                    "queueId", word[3], "commitOffset", word[4]));
            case "query":
                final RemotingCommand found = ask(RequestCode.QUERY_CONSUMER_OFFSET, null, "consumerGroup", word[1],
                    "topic", word[2], "queueId", word[3], "setZeroIfNotFound", "false");
                return found.getCode() == 0 ? found.getExtFields().get("offset") : outcome(found);
            case "table":
                return table(ask(RequestCode.GET_ALL_CONSUMER_OFFSET, null));
            case "correction":
                return body(ask(RequestCode.QUERY_CORRECTION_OFFSET, null, "topic", word[1], "compareGroup", word[2],
                    "filterGroups", word[3]));
            case "reset":
                return outcome(ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, null, "group", word[1], "topic", word[2],
                    "queueId", word[3], "offset", word[4], "timestamp", "-1", "isForce", "true"));
            case "clone":
                final String[] all = {"srcGroup", word[1], "destGroup", word[2], "offline", "true"};
                return outcome(ask(RequestCode.CLONE_GROUP_OFFSET, null, word.length == 3 ? all : with(all, "topic", word[3])));
            case "delete":
                return outcome(ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, null, "groupName", word[1], "cleanOffset", "true"));
            case "consumer":
                return outcome(ask(RequestCode.HEART_BEAT, heartbeat(word)));
            case "pull":
                return pull(word);
            case "until":
                return until(String.join(" ", Arrays.asList(word).subList(1, word.length)));
            case "end":
                return end(word[1], word[2], Long.parseLong(word[3]));
            default:
                throw new IllegalArgumentException(word[0]);
        }
    }

    private static String[] with(final String[] fields, final String name, final String value) {
        final String[] more = Arrays.copyOf(fields, fields.length + 2);
        more[fields.length] = name;
        more[fields.length + 1] = value;
        return more;
    }

    private static RemotingCommand ask(final int code, final String body, final String... fields) throws Exception {
        final RemotingCommand request = RemotingCommand.createRequestCommand(code, null);
        for (int at = 0; at < fields.length; at += 2) {
            request.addExtField(fields[at], fields[at + 1]);
        }
        if (body != null) {
            request.setBody(body.getBytes(StandardCharsets.UTF_8));
        }
        return client.invokeSync(broker, request, 30_000);
    }

    private static String outcome(final RemotingCommand response) {
        final boolean silent = response.getRemark() == null || response.getRemark().startsWith("not set");
        final String remark = silent ? "" : " (" + response.getRemark() + ")";
        return (response.getCode() == 0 ? "SUCCESS" : "code " + response.getCode()) + remark;
    }

    private static String body(final RemotingCommand response) {
        return response.getCode() == 0 ? new String(response.getBody(), StandardCharsets.UTF_8) : outcome(response);
    }

    private static String send(final String[] word) throws Exception {
        final String light = word.length > 4 ? "INNER_MULTI_DISPATCH\u0001" + word[4] + "\u0002" : "";
        for (int sent = 0; sent < Integer.parseInt(word[3]); sent++) {
            final RemotingCommand response = ask(RequestCode.SEND_MESSAGE, "m" + sent, "producerGroup", "findings", "topic", word[1],
                "defaultTopic", "TBW102", "defaultTopicQueueNums", "4", "queueId", word[2], "sysFlag", "0",
                "bornTimestamp", Long.toString(System.currentTimeMillis()), "flag", "0",
                "properties", light + "UNIQ_KEY\u0001" + System.nanoTime(), "reconsumeTimes", "0");
            if (response.getCode() != 0) {
                return outcome(response);
            }
        }
        return "SUCCESS";
    }

    private static String heartbeat(final String[] word) {
        final ConsumerData consumer = new ConsumerData();
        consumer.setGroupName(word[1]);
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.CLUSTERING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        for (final String topic : Arrays.asList(word).subList(2, word.length)) {
            consumer.getSubscriptionDataSet().add(new SubscriptionData(topic, "*"));
        }
        final HeartbeatData data = new HeartbeatData();
        data.setClientID("findings");
        data.getConsumerDataSet().add(consumer);
        return data.toJson();
    }

    private static String pull(final String[] word) throws Exception {
        final RemotingCommand response = ask(RequestCode.PULL_MESSAGE, null, "consumerGroup", word[1], "topic", word[2],
            "queueId", word[3], "queueOffset", word[4], "maxMsgNums", "1", "sysFlag", Integer.toString(PullSysFlag.buildSysFlag(
                false, false, true, false)), "commitOffset", "0", "suspendTimeoutMillis", "0", "subscription", "*",
            "subVersion", "0", "expressionType", "TAG");
        return outcome(response) + ", next " + response.getExtFields().get("nextBeginOffset");
    }

    /** Wait until the table has this text. */
    private static String until(final String text) throws Exception {
        for (int tries = 0; ; tries++) {
            final String seen = table(ask(RequestCode.GET_ALL_CONSUMER_OFFSET, null));
            if (seen.contains(text) || tries == 600) {
                return seen;
            }
            Thread.sleep(100);
        }
    }

    /** The index of a queue follows the log a moment later. */
    private static String end(final String topic, final String queue, final long least) throws Exception {
        for (int tries = 0; ; tries++) {
            final String offset = ask(RequestCode.GET_MAX_OFFSET, null, "topic", topic, "queueId", queue).getExtFields().get("offset");
            if (Long.parseLong(offset) >= least || tries == 100) {
                return offset;
            }
            Thread.sleep(100);
        }
    }

    /** Sorted; without the broker's own groups. */
    private static String table(final RemotingCommand response) {
        final Map<?, ?> body = RemotingSerializable.decode(response.getBody(), Map.class);
        final TreeMap<String, String> rows = new TreeMap<>();
        for (final String name : new String[] {"offsetTable", "lmqOffsetTable"}) {
            final Map<?, ?> part = (Map<?, ?>) body.get(name);
            if (part != null) {
                part.forEach((key, value) -> rows.put(key.toString(), value.toString()));
            }
        }
        rows.keySet().removeIf(key -> key.contains("@CID_RMQ_SYS"));
        return rows.toString();
    }
}
