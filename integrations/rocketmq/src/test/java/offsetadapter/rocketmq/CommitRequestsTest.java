package offsetadapter.rocketmq;

import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.junit.Test;

public class CommitRequestsTest {
    /** Only the answer to a consumer's commit may wait; an offset that comes with a pull, or from a service of the broker, may not. */
    @Test
    public void onlyCommitsMayWait() {
        final CommitRequests commits = new CommitRequests();
        assertFalse(commits.handled());
        commits.doBeforeRequest("", RemotingCommand.createRequestCommand(RequestCode.UPDATE_CONSUMER_OFFSET, null));
        assertTrue(commits.handled());
        commits.doBeforeRequest("", RemotingCommand.createRequestCommand(RequestCode.PULL_MESSAGE, null));
        assertFalse(commits.handled());
        commits.doBeforeRequest("", RemotingCommand.createRequestCommand(RequestCode.UPDATE_CONSUMER_OFFSET, null));
        commits.doAfterResponse("", null, null);
        assertFalse(commits.handled());
    }
}
