import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** The messages of ../clients.md as protobuf's wire format has them, written and read by hand. */
final class Wire {
    private static final String METADATA = "m".repeat(4096);
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();

    /** A shard and its offset. */
    record Shard(String name, long offset) {
    }

    /** A reply of StreamCommits. */
    record Reply(long id, long code, String message, long covers) {
    }

    /** A row of a read. */
    record Row(String shard, long offset, int metadataBytes) {
    }

    private interface Field {
        void take(int number, long value, byte[] bytes);
    }

    static byte[] commit(final String group, final Shard... shards) {
        final Wire entry = new Wire().text(2, group);
        for (final Shard shard : shards) {
            entry.bytes(3, new Wire().text(1, shard.name).number(2, shard.offset).done());
        }
        return new Wire().bytes(1, entry.done()).done();
    }

    static byte[] bulk(final String group, final int count) {
        final Wire entry = new Wire().text(2, group);
        for (int at = 0; at < count; at++) {
            entry.bytes(3, new Wire().text(1, "s-" + at).number(2, 1).text(3, METADATA).done());
        }
        return new Wire().bytes(1, entry.done()).done();
    }

    static byte[] streamed(final long id, final byte[] commit) {
        return new Wire().number(1, id).bytes(2, commit).done();
    }

    static byte[] read(final String group) {
        return new Wire().bytes(1, new Wire().text(2, group).done()).number(2, 1).done();
    }

    static byte[] healthOf(final String service) {
        return new Wire().text(1, service).done();
    }

    static Reply reply(final byte[] message) {
        final long[] numbers = new long[6];
        final String[] text = {""};
        parse(message, (number, value, bytes) -> {
            numbers[number] = value;
            text[0] = number == 4 ? new String(bytes, StandardCharsets.UTF_8) : text[0];
        });
        return new Reply(numbers[1], numbers[3], text[0], numbers[5]);
    }

    static List<Row> rows(final byte[] message) {
        final List<Row> rows = new ArrayList<>();
        parse(message, (field, none, row) -> {
            final String[] shard = {""};
            final long[] numbers = new long[2];
            parse(row, (number, value, bytes) -> {
                switch (number) {
                    case 3 -> shard[0] = new String(bytes, StandardCharsets.UTF_8);
                    case 5 -> numbers[0] = value;
                    case 6 -> numbers[1] = bytes.length;
                    default -> { }
                }
            });
            rows.add(new Row(shard[0], numbers[0], (int) numbers[1]));
        });
        return rows;
    }

    static long status(final byte[] message) {
        final long[] status = new long[1];
        parse(message, (number, value, bytes) -> status[0] = value);
        return status[0];
    }

    private static void parse(final byte[] message, final Field field) {
        final ByteBuffer in = ByteBuffer.wrap(message);
        while (in.hasRemaining()) {
            final int tag = (int) varint(in);
            final long value = varint(in);
            final byte[] bytes = new byte[(tag & 7) == 2 ? (int) value : 0];
            in.get(bytes);
            field.take(tag >>> 3, value, bytes);
        }
    }

    private static long varint(final ByteBuffer in) {
        long value = 0;
        for (int shift = 0; ; shift += 7) {
            final byte next = in.get();
            value |= (long) (next & 0x7f) << shift;
            if (next >= 0) {
                return value;
            }
        }
    }

    private Wire text(final int number, final String text) {
        return bytes(number, text.getBytes(StandardCharsets.UTF_8));
    }

    private Wire bytes(final int number, final byte[] bytes) {
        varint(number << 3 | 2);
        varint(bytes.length);
        out.writeBytes(bytes);
        return this;
    }

    private Wire number(final int number, final long value) {
        varint(number << 3);
        varint(value);
        return this;
    }

    private void varint(final long value) {
        long rest = value;
        while ((rest & ~0x7fL) != 0) {
            out.write((int) (rest & 0x7f | 0x80));
            rest >>>= 7;
        }
        out.write((int) rest);
    }

    private byte[] done() {
        return out.toByteArray();
    }
}
