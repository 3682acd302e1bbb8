package offsetadapter.rocketmq;

import io.netty.channel.Channel;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.client.ClientChannelInfo;
import org.apache.rocketmq.broker.client.ConsumerGroupInfo;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.offset.LmqConsumerOffsetManager;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.constant.LoggerName;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.logging.org.slf4j.Logger;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.body.ResetOffsetBody;
import org.apache.rocketmq.remoting.protocol.header.ResetOffsetRequestHeader;

/** The broker's own offset manager, of whichever kind, and its message store. */
final class BrokerTable implements Broker {
    private static final Logger LOG = LoggerFactory.getLogger(LoggerName.BROKER_LOGGER_NAME);
    /** Shown in the broker's log where it logs who committed. */
    private static final String HOST = "offset-adapter";
    private static final long NOTIFY_MS = 5_000;

    private final BrokerController controller;
    private final ConsumerOffsetManager inner;
    private final boolean isV2;

    BrokerTable(final BrokerController controller, final ConsumerOffsetManager inner) {
        this.controller = controller;
        this.inner = inner;
        this.isV2 = inner.getClass().getSimpleName().equals("ConsumerOffsetManagerV2"); // since 5.3.2
    }

    @Override
    public String name() {
        return controller.getBrokerConfig().getBrokerName();
    }

    @Override
    public long offset(final Key key) {
        return inner.queryOffset(key.group, key.topic, key.queue);
    }

    @Override
    public Collection<Key> keys() {
        final List<Key> keys = new ArrayList<>();
        inner.getOffsetTable().forEach((topicAtGroup, queues) -> queues.keySet().forEach(queue -> add(keys, topicAtGroup, queue)));
        if (inner instanceof LmqConsumerOffsetManager) {
            ((LmqConsumerOffsetManager) inner).getLmqOffsetTable().keySet().forEach(topicAtGroup -> add(keys, topicAtGroup, 0));
        }
        return keys;
    }

    private void add(final List<Key> keys, final String topicAtGroup, final int queue) {
        final int at = topicAtGroup.indexOf(ConsumerOffsetManager.TOPIC_GROUP_SEPARATOR);
        if (at > 0) {
            final Key key = new Key(topicAtGroup.substring(at + 1), topicAtGroup.substring(0, at), queue);
            if (!isPhantom(key)) {
                keys.add(key);
            }
        }
    }

    /**
     * True for what V2 makes of a reset beside it, with group and topic swapped (assignResetOffset), and has for ever: neither the
     * group nor the topic exists, but a group named like the topic, which has the mirror. A broker takes no commit of an unknown group
     * or topic.
     */
    private boolean isPhantom(final Key key) {
        return isV2 && !key.group.equals(key.topic) && !isGroup(key.group) && !isTopic(key.topic)
            && isGroup(key.topic) && inner.queryOffset(key.topic, key.group, key.queue) >= 0;
    }

    private boolean isGroup(final String name) {
        return controller.getSubscriptionGroupManager().getSubscriptionGroupTable().containsKey(name);
    }

    private boolean isTopic(final String name) {
        return controller.getTopicConfigManager().getTopicConfigTable().containsKey(name);
    }

    @Override
    public boolean knows(final Key key) {
        final String broadcast = ConsumerOffsetManager.TOPIC_GROUP_SEPARATOR + "broadcast"; // what a proxy commits for such a group
        final String group = key.group.endsWith(broadcast) ? key.group.substring(0, key.group.length() - broadcast.length()) : key.group;
        return (isGroup(group) || MixAll.isLmq(group)) && (isTopic(key.topic) || MixAll.isLmq(key.topic));
    }

    @Override
    public Collection<Key> queues() {
        final List<Key> keys = new ArrayList<>();
        controller.getTopicConfigManager().getTopicConfigTable().forEach((topic, config) -> {
            for (int queue = 0; queue < queuesOf(config); queue++) {
                keys.add(new Key("", topic, queue));
            }
        });
        return keys;
    }

    @Override
    public Set<String> groups() {
        final Set<String> groups = new HashSet<>(controller.getSubscriptionGroupManager().getSubscriptionGroupTable().keySet());
        keys().forEach(key -> groups.add(key.group));
        groups.removeIf(MixAll::isSysConsumerGroup);
        return groups;
    }

    @Override
    public long end(final Key key) {
        final TopicConfig config = controller.getTopicConfigManager().getTopicConfigTable().get(key.topic);
        if (config == null) {
            return MixAll.isLmq(key.topic) ? Long.MAX_VALUE : NONE;
        }
        if (key.queue >= queuesOf(config)) {
            return NONE;
        }
        try {
            return Math.max(0, controller.getMessageStore().getMaxOffsetInQueue(key.topic, key.queue));
        } catch (Exception e) { // since 5.3.1 it declares one
            LOG.warn("offset-adapter: {}: its end is unknown", key, e);
            return Long.MAX_VALUE;
        }
    }

    private static int queuesOf(final TopicConfig config) {
        return Math.max(config.getReadQueueNums(), config.getWriteQueueNums());
    }

    @Override
    public void adopt(final Key key, final long offset) {
        inner.commitOffset(HOST, key.group, key.topic, key.queue, offset);
    }

    @Override
    public void reset(final Key key, final long offset) {
        inner.assignResetOffset(key.topic, key.group, key.queue, offset);
        // The managers of LMQ groups and V2 keep such a reset in memory only.
        inner.commitOffset(HOST, key.group, key.topic, key.queue, offset);
        if (!controller.getBrokerConfig().isUseServerSideResetOffset()) {
            tellConsumers(key, offset); // else each consumer learns of it with its next pull
        }
    }

    private void tellConsumers(final Key key, final long offset) {
        final ConsumerGroupInfo group = controller.getConsumerManager().getConsumerGroupInfo(key.group);
        if (group == null) {
            return;
        }
        final ResetOffsetRequestHeader header = new ResetOffsetRequestHeader();
        header.setTopic(key.topic);
        header.setGroup(key.group);
        header.setTimestamp(System.currentTimeMillis());
        final ResetOffsetBody body = new ResetOffsetBody();
        body.setOffsetTable(Collections.singletonMap(new MessageQueue(key.topic, name(), key.queue), offset));
        for (final Map.Entry<Channel, ClientChannelInfo> consumer : group.getChannelInfoTable().entrySet()) {
            final RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header);
            request.setBody(body.encode());
            try {
                controller.getRemotingServer().invokeOneway(consumer.getKey(), request, NOTIFY_MS);
            } catch (Exception e) {
                LOG.warn("offset-adapter: {}: consumer {} is not told of the reset", key, consumer.getValue().getClientId(), e);
            }
        }
    }

    @Override
    public void remove(final Key key) {
        final String topicAtGroup = key.topic + ConsumerOffsetManager.TOPIC_GROUP_SEPARATOR + key.group;
        if (inner instanceof LmqConsumerOffsetManager && MixAll.isLmq(key.group)) {
            ((LmqConsumerOffsetManager) inner).getLmqOffsetTable().remove(topicAtGroup);
            return;
        }
        inner.queryThenEraseResetOffset(key.topic, key.group, key.queue);
        final ConcurrentMap<Integer, Long> queues = inner.getOffsetTable().get(topicAtGroup);
        if (queues != null) {
            queues.remove(key.queue);
        }
    }
}
