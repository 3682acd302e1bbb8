package offsetadapter.rocketmq;

import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;

/**
 * Knows whether the current thread handles a consumer's commit, whose answer may wait or be an error. Offsets also come with pulls
 * and from the broker's own services, which must do neither.
 */
final class CommitRequests implements RPCHook {
    private final ThreadLocal<Boolean> handled = ThreadLocal.withInitial(() -> false);

    boolean handled() {
        return handled.get();
    }

    @Override
    public void doBeforeRequest(final String remoteAddr, final RemotingCommand request) {
        handled.set(request.getCode() == RequestCode.UPDATE_CONSUMER_OFFSET);
    }

    @Override
    public void doAfterResponse(final String remoteAddr, final RemotingCommand request, final RemotingCommand response) {
        handled.set(false);
    }
}
