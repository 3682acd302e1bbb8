package offsetadapter.rocketmq;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.remoting.protocol.DataVersion;

/** Stands before the broker's own manager: everything goes to that one as before, and each change is noted for the adapter. */
final class MirroredOffsetManager extends ConsumerOffsetManager {
    private final ConsumerOffsetManager inner;
    private final Mirror mirror;
    private final boolean sync;
    private final CommitRequests commits;

    MirroredOffsetManager(
        final BrokerController controller, final ConsumerOffsetManager inner, final Mirror mirror, final boolean sync, final CommitRequests commits
    ) {
        super(controller);
        this.inner = inner;
        this.mirror = mirror;
        this.sync = sync;
        this.commits = commits;
        super.setOffsetTable(inner.getOffsetTable());
    }

    // ---- what changes offsets

    @Override
    public void commitOffset(final String clientHost, final String group, final String topic, final int queueId, final long offset) {
        final Key key = new Key(group, topic, queueId);
        final boolean answered = commits.handled() && mirror.mirrors(key);
        if (answered) {
            mirror.check();
        }
        inner.commitOffset(clientHost, group, topic, queueId, offset);
        mirror.await(mirror.note(key, false, sync && answered));
    }

    @Override
    public void assignResetOffset(final String topic, final String group, final int queueId, final long offset) {
        inner.assignResetOffset(topic, group, queueId, offset);
        if (topic != null && group != null && queueId >= 0 && offset >= 0) {
            // The managers of LMQ groups and V2 keep a reset in memory only, and would be back at the old offset after a restart.
            inner.commitOffset("reset", group, topic, queueId, offset);
            mirror.note(new Key(group, topic, queueId), true, false);
        }
    }

    @Override
    public void cloneOffset(final String srcGroup, final String destGroup, final String topic) {
        inner.cloneOffset(srcGroup, destGroup, topic);
        final Map<Integer, Long> queues = inner.queryOffset(srcGroup, topic);
        if (queues != null) {
            new HashMap<>(queues).forEach((queue, offset) -> {
                inner.commitOffset("clone", destGroup, topic, queue, offset); // V2 would keep it in memory only
                mirror.note(new Key(destGroup, topic, queue), true, false);
            });
        }
    }

    @Override
    public void removeOffset(final String group) {
        mirror.deleting(group, null);
        inner.removeOffset(group);
        mirror.deleting(group, null); // also what was committed meanwhile
        mirror.scanSoon();
    }

    @Override
    public void cleanOffset(final String group) {
        mirror.deleting(group, null);
        inner.cleanOffset(group);
        mirror.deleting(group, null); // also what was committed meanwhile
        mirror.scanSoon();
    }

    @Override
    public void cleanOffsetByTopic(final String topic) {
        mirror.deleting(null, topic);
        inner.cleanOffsetByTopic(topic);
        mirror.deleting(null, topic); // also what was committed meanwhile
        mirror.scanSoon();
    }

    @Override
    public void scanUnsubscribedTopic() {
        inner.scanUnsubscribedTopic();
        mirror.scanSoon();
    }

    /** It removes the filtered groups (apache/rocketmq 10987), which nobody deleted: they are given back. */
    @Override
    public Map<Integer, Long> queryMinOffsetInAllGroup(final String topic, final String filterGroups) {
        final Map<Integer, Long> offsets = inner.queryMinOffsetInAllGroup(topic, filterGroups);
        mirror.scanSoon();
        return offsets;
    }

    // ---- what reads them

    @Override
    public long queryOffset(final String group, final String topic, final int queueId) {
        final long here = inner.queryOffset(group, topic, queueId);
        return here >= 0 ? here : mirror.missing(new Key(group, topic, queueId));
    }

    // ---- files

    @Override
    public void persist() {
        mirror.persisting(inner::persist);
    }

    @Override
    public boolean stop() {
        mirror.stop();
        persist(); // what was taken over meanwhile
        return inner.stop();
    }

    // ---- all the rest

    @Override
    public Map<Integer, Long> queryOffset(final String group, final String topic) {
        return inner.queryOffset(group, topic);
    }

    @Override
    public ConcurrentMap<String, ConcurrentMap<Integer, Long>> getOffsetTable() {
        return inner.getOffsetTable();
    }

    @Override
    public void setOffsetTable(final ConcurrentMap<String, ConcurrentMap<Integer, Long>> offsetTable) {
        inner.setOffsetTable(offsetTable);
        mirror.scanSoon();
    }

    @Override
    public Set<String> whichTopicByConsumer(final String group) {
        return inner.whichTopicByConsumer(group);
    }

    @Override
    public Set<String> whichGroupByTopic(final String topic) {
        return inner.whichGroupByTopic(topic);
    }

    @Override
    public Map<String, Set<String>> getGroupTopicMap() {
        return inner.getGroupTopicMap();
    }

    @Override
    public void commitPullOffset(final String clientHost, final String group, final String topic, final int queueId, final long offset) {
        inner.commitPullOffset(clientHost, group, topic, queueId, offset);
    }

    @Override
    public long queryPullOffset(final String group, final String topic, final int queueId) {
        return inner.queryPullOffset(group, topic, queueId);
    }

    @Override
    public void clearPullOffset(final String group, final String topic) {
        inner.clearPullOffset(group, topic);
    }

    @Override
    public boolean hasOffsetReset(final String topic, final String group, final int queueId) {
        return inner.hasOffsetReset(topic, group, queueId);
    }

    @Override
    public Long queryThenEraseResetOffset(final String topic, final String group, final Integer queueId) {
        return inner.queryThenEraseResetOffset(topic, group, queueId);
    }

    @Override
    public boolean load() {
        return inner.load();
    }

    @Override
    public boolean loadDataVersion() {
        return inner.loadDataVersion();
    }

    @Override
    public DataVersion getDataVersion() {
        return inner.getDataVersion();
    }

    @Override
    public void setDataVersion(final DataVersion dataVersion) {
        inner.setDataVersion(dataVersion);
    }

    @Override
    public void updateDataVersion() {
        inner.updateDataVersion();
    }

    @Override
    public String encode() {
        return inner.encode();
    }

    @Override
    public String encode(final boolean prettyFormat) {
        return inner.encode(prettyFormat);
    }

    @Override
    public void decode(final String jsonString) {
        inner.decode(jsonString);
        mirror.scanSoon();
    }

    @Override
    public String configFilePath() {
        return inner.configFilePath();
    }
}
