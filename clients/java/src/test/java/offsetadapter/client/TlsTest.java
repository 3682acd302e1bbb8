package offsetadapter.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;

import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ServerCredentials;
import io.grpc.TlsChannelCredentials;
import io.grpc.TlsServerCredentials;
import java.io.File;
import java.security.KeyStore;
import java.time.Duration;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.TrustManagerFactory;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** A call goes through TLS to the server that has the certificate, or not at all. */
public final class TlsTest {
    private static final String PASSWORD = "secret";
    private static final Commit COMMIT = Commit.of(Group.of("billing")).offset("orders/0", 43);

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    @Test
    public void aCommitGoesThroughTls() throws Exception {
        final KeyStore keys = certified("example.com");
        try (FakeAdapter adapter = new FakeAdapter(server(keys)); Client client = client(adapter, knowing(keys), "example.com", 60_000)) {
            final var answer = client.commitAsync(COMMIT);
            adapter.next().done();
            assertEquals(Committed.PLAIN, answer.get());
        }
    }

    @Test
    public void aServerThatIsNotKnownGetsNothing() throws Exception {
        final KeyStore keys = certified("example.com");
        try (FakeAdapter adapter = new FakeAdapter(server(keys));
            Client plaintext = client(adapter, InsecureChannelCredentials.create(), "example.com", 300);
            Client anotherAuthority = client(adapter, knowing(certified("example.com")), "example.com", 300);
            Client anotherName = client(adapter, knowing(keys), "example.org", 300)) {
            assertThrows(LostException.class, () -> plaintext.commit(COMMIT));
            assertThrows(LostException.class, () -> anotherAuthority.commit(COMMIT));
            assertThrows(LostException.class, () -> anotherName.commit(COMMIT));
            assertEquals(0, adapter.requests.size());
        }
    }

    /** A key and its own certificate, made by the JDK's tool. */
    private KeyStore certified(final String name) throws Exception {
        final File file = new File(folder.newFolder(), "keys.p12");
        final int code = new ProcessBuilder(System.getProperty("java.home") + "/bin/keytool", "-genkeypair", "-alias", "adapter", "-keyalg",
            "EC", "-dname", "CN=" + name, "-ext", "san=dns:" + name, "-storetype", "PKCS12", "-keystore", file.getPath(), "-storepass",
            PASSWORD).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start().waitFor();
        assertEquals(0, code);
        return KeyStore.getInstance(file, PASSWORD.toCharArray());
    }

    private static ServerCredentials server(final KeyStore keys) throws Exception {
        final KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(keys, PASSWORD.toCharArray());
        return TlsServerCredentials.newBuilder().keyManager(factory.getKeyManagers()).build();
    }

    /** Credentials of a client that trusts this certificate alone. */
    private static ChannelCredentials knowing(final KeyStore keys) throws Exception {
        final KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        trusted.setCertificateEntry("adapter", keys.getCertificate("adapter"));
        final TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(trusted);
        return TlsChannelCredentials.newBuilder().trustManager(factory.getTrustManagers()).build();
    }

    private static Client client(final FakeAdapter adapter, final ChannelCredentials credentials, final String name, final long millis) {
        return Client.builder(adapter.address).tls(credentials).serverName(name).timeout(Duration.ofMillis(millis)).build();
    }
}
