package offsetadapter.rocketmq;

import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.Parser;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import offsetadapter.rpc.ChangeReply;
import offsetadapter.rpc.CommitOffsetsReply;
import offsetadapter.rpc.CommitOffsetsRequest;
import offsetadapter.rpc.DeleteOffsetsRequest;
import offsetadapter.rpc.GetBoundsReply;
import offsetadapter.rpc.GetBoundsRequest;
import offsetadapter.rpc.GetOffsetsForTimeReply;
import offsetadapter.rpc.GetOffsetsForTimeRequest;
import offsetadapter.rpc.ListOffsetsReply;
import offsetadapter.rpc.ListOffsetsRequest;
import offsetadapter.rpc.ReadOffsetsReply;
import offsetadapter.rpc.ReadOffsetsRequest;
import offsetadapter.rpc.ResetOffsetsRequest;
import offsetadapter.rpc.WatchOffsetsReply;
import offsetadapter.rpc.WatchOffsetsRequest;

/** The methods of proto/offsets.proto that are used here. By hand, since brokers do not bring grpc-protobuf along. */
final class Calls {
    static final String BROKER_LOG = "offsets.v1.BrokerLog";
    static final MethodDescriptor<CommitOffsetsRequest, CommitOffsetsReply> COMMIT =
        unary("offsets.v1.OffsetStore/CommitOffsets", CommitOffsetsRequest.parser(), CommitOffsetsReply.parser());
    static final MethodDescriptor<ReadOffsetsRequest, ReadOffsetsReply> READ =
        unary("offsets.v1.OffsetStore/ReadOffsets", ReadOffsetsRequest.parser(), ReadOffsetsReply.parser());
    static final MethodDescriptor<ListOffsetsRequest, ListOffsetsReply> LIST =
        unary("offsets.v1.OffsetStore/ListOffsets", ListOffsetsRequest.parser(), ListOffsetsReply.parser());
    static final MethodDescriptor<WatchOffsetsRequest, WatchOffsetsReply> WATCH =
        method(MethodType.SERVER_STREAMING, "offsets.v1.OffsetStore/WatchOffsets", WatchOffsetsRequest.parser(), WatchOffsetsReply.parser());
    static final MethodDescriptor<ResetOffsetsRequest, ChangeReply> RESET =
        unary("offsets.v1.OffsetAdmin/ResetOffsets", ResetOffsetsRequest.parser(), ChangeReply.parser());
    static final MethodDescriptor<DeleteOffsetsRequest, ChangeReply> DELETE =
        unary("offsets.v1.OffsetAdmin/DeleteOffsets", DeleteOffsetsRequest.parser(), ChangeReply.parser());
    static final MethodDescriptor<GetBoundsRequest, GetBoundsReply> BOUNDS =
        unary(BROKER_LOG + "/GetBounds", GetBoundsRequest.parser(), GetBoundsReply.parser());
    static final MethodDescriptor<GetOffsetsForTimeRequest, GetOffsetsForTimeReply> TIMES =
        unary(BROKER_LOG + "/GetOffsetsForTime", GetOffsetsForTimeRequest.parser(), GetOffsetsForTimeReply.parser());

    private Calls() {
    }

    private static <Q extends Message, R extends Message> MethodDescriptor<Q, R> unary(
        final String name, final Parser<Q> requests, final Parser<R> replies
    ) {
        return method(MethodType.UNARY, name, requests, replies);
    }

    private static <Q extends Message, R extends Message> MethodDescriptor<Q, R> method(
        final MethodType type, final String name, final Parser<Q> requests, final Parser<R> replies
    ) {
        return MethodDescriptor.<Q, R>newBuilder().setType(type).setFullMethodName(name)
            .setRequestMarshaller(new Messages<>(requests)).setResponseMarshaller(new Messages<>(replies)).build();
    }

    private static final class Messages<T extends Message> implements MethodDescriptor.Marshaller<T> {
        private final Parser<T> parser;

        Messages(final Parser<T> parser) {
            this.parser = parser;
        }

        @Override
        public InputStream stream(final T message) {
            return new ByteArrayInputStream(message.toByteArray());
        }

        @Override
        public T parse(final InputStream stream) {
            try (InputStream bytes = stream) {
                return parser.parseFrom(bytes);
            } catch (InvalidProtocolBufferException e) {
                throw Status.INTERNAL.withDescription("not a message: " + e.getMessage()).asRuntimeException();
            } catch (IOException e) {
                throw Status.INTERNAL.withDescription(e.toString()).asRuntimeException();
            }
        }
    }
}
