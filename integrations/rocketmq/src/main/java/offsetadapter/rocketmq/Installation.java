package offsetadapter.rocketmq;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.config.BrokerRole;

/** Puts the parts together in a broker that is about to start. */
final class Installation {
    /** Brokers before 5.3.2 have no setter for their offset manager: their table is looked through so often. */
    private static final long SCAN_OLD_MS = 20;

    private Installation() {
    }

    static void install(final BrokerController controller) throws Exception {
        final Settings settings = Settings.of(controller.getConfiguration().getAllConfigs());
        if (settings == null) {
            return;
        }
        final ConsumerOffsetManager inner = controller.getConsumerOffsetManager();
        final BrokerTable table = new BrokerTable(controller, inner);
        final String token = settings.tokenFile.isEmpty() ? ""
            : new String(Files.readAllBytes(Paths.get(settings.tokenFile)), StandardCharsets.UTF_8).trim();
        final Sidecar sidecar = new GrpcSidecar(table.name(), settings.address, token);
        final Marker marker = new Marker(controller.getMessageStoreConfig().getStorePathRootDir());
        final Mirror mirror = new Mirror(table, sidecar, marker, settings, System::currentTimeMillis);
        final CommitRequests commits = new CommitRequests();
        final MirroredOffsetManager manager = new MirroredOffsetManager(controller, inner, mirror, settings.ack == Settings.Ack.SYNC, commits);
        try {
            controller.setConsumerOffsetManager(manager);
        } catch (NoSuchMethodError before532) {
            if (settings.ack == Settings.Ack.SYNC || settings.absent == Settings.Absent.REFUSE) {
                throw new IllegalArgumentException(Settings.ACK + " = sync and " + Settings.ABSENT + " = refuse need RocketMQ 5.3.2 or newer:"
                    + " older brokers have no setConsumerOffsetManager");
            }
            mirror.scanEvery(SCAN_OLD_MS);
        }
        controller.registerServerRPCHook(commits);
        final LogServer logServer = new LogServer(controller, table, settings.logAddress);
        logServer.start();
        controller.getBrokerAttachedPlugins().add(new Attached(mirror, settings, logServer));
        mirror.active(master(controller));
        if (mirror.start()) {
            inner.persist();
        }
        final Thread thread = new Thread(mirror, "offset-adapter");
        thread.setDaemon(true);
        thread.start();
    }

    /** Where a controller or DLedger chooses the master, the broker is told later. */
    private static boolean master(final BrokerController controller) {
        return controller.getBrokerConfig().getBrokerId() == MixAll.MASTER_ID
            && controller.getMessageStoreConfig().getBrokerRole() != BrokerRole.SLAVE
            && !controller.getBrokerConfig().isEnableControllerMode()
            && !controller.getMessageStoreConfig().isEnableDLegerCommitLog();
    }
}
