package offsetadapter.rocketmq;

import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.transaction.queue.DefaultTransactionalMessageCheckListener;

/**
 * Loaded by a stock broker through META-INF/service, in BrokerController.initialTransaction: its stores and managers are loaded
 * then, and no port is open. It does what the default listener does, and gets the BrokerController.
 */
public class OffsetAdapterPlugin extends DefaultTransactionalMessageCheckListener {
    /** Raises IllegalStateException, which ends the start of the broker: it was told to use the adapter, and cannot. */
    @Override
    public void setBrokerController(final BrokerController controller) {
        super.setBrokerController(controller);
        try {
            Installation.install(controller);
        } catch (LinkageError e) {
            throw new IllegalStateException("offset adapter: this broker is too old for the plugin, which needs RocketMQ 5.0 or newer with its gRPC"
                + " jars; remove offset-adapter-rocketmq.jar, and use the adapter's bridge ([rocketmq] in adapter.toml): " + e, e);
        } catch (Exception e) {
            throw new IllegalStateException("offset adapter: " + e.getMessage(), e);
        }
    }
}
