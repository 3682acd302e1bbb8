package offsetadapter.examples;

import java.util.Map;
import offsetadapter.client.Client;
import offsetadapter.client.Commit;
import offsetadapter.client.Group;
import offsetadapter.client.MovedException;
import offsetadapter.client.Shards;
import offsetadapter.client.Stored;

/**
 * A first program: it reads where to begin, and commits after every message.
 *
 * <pre>java -cp 'target/test-classes:target/classes:target/jars/*' offsetadapter.examples.First unix:/run/offset-adapter/adapter.sock</pre>
 */
public final class First {
    private First() {
    }

    public static void main(final String[] arguments) {
        final String address = arguments.length > 0 ? arguments[0] : "unix:/run/offset-adapter/adapter.sock";
        try (Client client = Client.of(address)) {
            final Group group = Group.of("billing");
            long next = begin(client, group);
            System.out.println("begins at " + next);
            for (int message = 0; message < 3; message++) {
                // ... handle message `next` here ...
                next++;
                try {
                    client.commit(Commit.of(group).offset("orders/0", next));
                    System.out.println("committed " + next);
                } catch (final MovedException moved) { // an operator reset the group: go on from there
                    next = begin(client, group);
                }
            }
        }
    }

    /** Where the group stands; absent is not 0, and begins there here, at the beginning of the log. */
    private static long begin(final Client client, final Group group) {
        final Map<String, Stored> stored = client.read(group, Shards.of("orders/0"));
        return stored.containsKey("orders/0") ? stored.get("orders/0").offset() : 0;
    }
}
