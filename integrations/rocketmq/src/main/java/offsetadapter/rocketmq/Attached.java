package offsetadapter.rocketmq;

import java.util.Map;
import org.apache.rocketmq.broker.plugin.BrokerAttachedPlugin;

/** What the broker tells its plugins: that it has started, which role it has, and that somebody wants its counters. */
final class Attached implements BrokerAttachedPlugin {
    private final Mirror mirror;
    private final Settings settings;
    private final LogServer logServer;

    Attached(final Mirror mirror, final Settings settings, final LogServer logServer) {
        this.mirror = mirror;
        this.settings = settings;
        this.logServer = logServer;
    }

    @Override
    public String pluginName() {
        return "offset-adapter";
    }

    @Override
    public boolean load() {
        return true;
    }

    @Override
    public void start() {
        mirror.started();
    }

    @Override
    public void shutdown() {
        mirror.stopped(); // after the offset manager was stopped
        logServer.stop();
    }

    @Override
    public void syncMetadata() {
    }

    /** A master that returns has taken over the table of the slave that acted for it. */
    @Override
    public void syncMetadataReverse(final String brokerAddr) {
        mirror.again();
    }

    @Override
    public void statusChanged(final boolean shouldStart) {
        mirror.active(shouldStart);
    }

    @Override
    public void buildRuntimeInfo(final Map<String, String> info) {
        info.put("offsetAdapterAddress", settings.address);
        info.put("offsetAdapterAck", settings.ack.name().toLowerCase());
        info.put("offsetAdapterState", mirror.state());
        info.put("offsetAdapterDirty", String.valueOf(mirror.dirtyCount()));
        info.put("offsetAdapterRequests", mirror.requests.toString());
        info.put("offsetAdapterOffsetsSent", mirror.sent.toString());
        info.put("offsetAdapterOffsetsTakenOver", mirror.adopted.toString());
        info.put("offsetAdapterBeyondTheLog", mirror.clamped.toString());
        info.put("offsetAdapterForeignChanges", mirror.foreign.toString());
        info.put("offsetAdapterForgotten", mirror.forgotten.toString());
        info.put("offsetAdapterFailures", mirror.failures.toString());
        info.put("offsetAdapterRefused", mirror.refused.toString());
        info.put("offsetAdapterUnacknowledged", mirror.unacknowledged.toString());
        info.put("offsetAdapterLastError", mirror.lastError);
        info.put("offsetAdapterLog", logServer.state());
    }
}
