package offsetadapter.client;

import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.ChannelOption;
import io.grpc.netty.shaded.io.netty.channel.EventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.epoll.Epoll;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import io.grpc.netty.shaded.io.netty.util.concurrent.DefaultThreadFactory;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The channel to an address. */
final class Connection {
    private static final Pattern HOST_PORT = Pattern.compile("(\\[[0-9a-fA-F:.%]+]|[^:/\\[\\]\\s]+):([0-9]{1,5})");
    private static final Pattern LITERAL = Pattern.compile("[0-9.]+|\\[.*]");
    /** A connection whose other end is gone is noticed, also by a watch. */
    private static final long PING_SECONDS = 10;
    /** The adapter is trusted, and limits its replies itself. */
    private static final int MAX_REPLY_BYTES = 64 << 20;

    final ManagedChannel channel;
    /** Gives back what the channel used, behind its end. */
    final Runnable release;

    private Connection(final NettyChannelBuilder builder, final Runnable release) {
        channel = builder.maxInboundMessageSize(MAX_REPLY_BYTES).keepAliveTime(PING_SECONDS, TimeUnit.SECONDS)
            .keepAliveTimeout(PING_SECONDS, TimeUnit.SECONDS).keepAliveWithoutCalls(true).disableServiceConfigLookUp()
            .proxyDetector(address -> null).build();
        this.release = release;
    }

    /** To an address, with its credentials, the name in the server's certificate (empty: the host) and the token that it will carry. */
    static Connection of(final String address, final ChannelCredentials credentials, final String serverName, final String token) {
        if (address.startsWith("unix:/")) {
            return ofUnix(address.substring("unix:".length()), credentials, serverName);
        }
        final Matcher parts = HOST_PORT.matcher(address);
        if (!parts.matches() || Integer.parseInt(parts.group(2)) > 65_535) {
            throw new InvalidException("address", address + " is none: it is host:port or unix:/path");
        }
        final String host = parts.group(1);
        if (!token.isEmpty() && credentials instanceof InsecureChannelCredentials && !isLoopback(host)) {
            throw new InvalidException("token", "it would go to " + address + " in plaintext: use TLS, or the adapter's Unix socket");
        }
        final String bare = host.startsWith("[") ? host.substring(1, host.length() - 1) : host;
        final NettyChannelBuilder builder = NettyChannelBuilder.forAddress(bare, Integer.parseInt(parts.group(2)), credentials);
        return new Connection(named(builder, serverName), () -> { });
    }

    private static Connection ofUnix(final String path, final ChannelCredentials credentials, final String serverName) {
        if (!Epoll.isAvailable()) {
            throw new InvalidException("address", "a Unix socket needs Linux with epoll: " + Epoll.unavailabilityCause().getMessage());
        }
        final EventLoopGroup threads = new EpollEventLoopGroup(1, new DefaultThreadFactory("offset-adapter-connection", true));
        final NettyChannelBuilder builder = NettyChannelBuilder.forAddress(new DomainSocketAddress(path), credentials)
            .eventLoopGroup(threads).channelType(EpollDomainSocketChannel.class, DomainSocketAddress.class)
            .withOption(ChannelOption.SO_KEEPALIVE, null); // of TCP: Netty would warn of it with each connection
        return new Connection(named(builder, serverName.isEmpty() ? "localhost" : serverName), () -> threads.shutdownGracefully());
    }

    private static NettyChannelBuilder named(final NettyChannelBuilder builder, final String serverName) {
        return serverName.isEmpty() ? builder : builder.overrideAuthority(serverName);
    }

    /** Without asking a name server. */
    private static boolean isLoopback(final String host) {
        try {
            return host.equals("localhost") || LITERAL.matcher(host).matches() && InetAddress.getByName(host).isLoopbackAddress();
        } catch (final UnknownHostException error) {
            return false;
        }
    }
}
