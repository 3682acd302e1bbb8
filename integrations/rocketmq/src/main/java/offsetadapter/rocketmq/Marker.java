package offsetadapter.rocketmq;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * What the plugin has to remember between two runs, in store/config/offsetAdapter: the epochs of the offsets that the broker's own
 * file holds, and what the files looked like that every run of a broker changes. If these have changed, the broker has run without
 * the plugin, and its file may be newer than the adapter, also where its offsets are lower.
 *
 * The files are `abort`, which a broker writes when it begins and removes when it ends well, and consumerOrderInfo.json, which it
 * writes when it ends.
 */
final class Marker {
    /** The epoch of keys that are not listed: that of every key that was never reset or rewound. */
    private static final long FIRST_EPOCH = 1;
    private static final String RUNNING = "running";
    private static final String STOPPED = "stopped";

    private final Path file;
    private final Path abort;
    private final Path atEnd;
    private final boolean found;
    private final boolean foreign;
    private final Map<Key, Long> before = new HashMap<>();
    private String head = "";
    private String saved = "";

    Marker(final String storePathRootDir) throws IOException {
        final File root = new File(storePathRootDir);
        file = new File(root, "config/offsetAdapter").toPath();
        abort = new File(root, "abort").toPath();
        atEnd = new File(root, "config/consumerOrderInfo.json").toPath();
        final List<String> lines = Files.exists(file) ? Files.readAllLines(file, StandardCharsets.UTF_8) : Collections.<String>emptyList();
        found = !lines.isEmpty() && read(lines.subList(1, lines.size()));
        head = found ? lines.get(0) : "";
        foreign = !head.equals(evidence(head.startsWith(STOPPED)));
    }

    /** False if this is not what a plugin wrote: then nothing is known. */
    private boolean read(final List<String> lines) {
        try {
            for (final String line : lines) {
                final String[] fields = line.split("\t");
                before.put(new Key(fields[1], fields[2], Integer.parseInt(fields[3])), Long.parseLong(fields[0]));
            }
            return true;
        } catch (NumberFormatException | ArrayIndexOutOfBoundsException e) {
            before.clear();
            return false;
        }
    }

    /** True if the broker has run without the plugin since the plugin last ran, or if the plugin runs for the first time. */
    boolean foreign() {
        return foreign;
    }

    /** The epoch in which the offset in the broker's file is; 0 if that is unknown. */
    long epoch(final Key key) {
        final Long epoch = before.get(key);
        return epoch != null ? epoch : (found ? FIRST_EPOCH : 0);
    }

    /** The broker runs, and has taken over what the adapter has. */
    synchronized void running(final Map<Key, Standing> standings) throws IOException {
        head = evidence(false);
        write(head, epochs(standings));
    }

    /** The broker has ended well, and the adapter has all that its file has. */
    synchronized void stopped(final Map<Key, Standing> standings) throws IOException {
        head = evidence(true);
        write(head, epochs(standings));
    }

    /** To be called after the broker's file was written, with `epochs` from before. */
    synchronized void save(final String epochs) throws IOException {
        if (!head.isEmpty() && !epochs.equals(saved)) {
            write(head, epochs);
        }
    }

    static String epochs(final Map<Key, Standing> standings) {
        final StringBuilder lines = new StringBuilder();
        standings.forEach((key, standing) -> {
            if (standing.epoch > FIRST_EPOCH) {
                lines.append(standing.epoch).append('\t').append(key.group).append('\t').append(key.topic).append('\t').append(key.queue).append('\n');
            }
        });
        return lines.toString();
    }

    private String evidence(final boolean ended) {
        return ended ? STOPPED + " " + look(abort) + " " + look(atEnd) : RUNNING + " " + look(abort);
    }

    private static String look(final Path path) {
        try {
            return Files.getLastModifiedTime(path).to(TimeUnit.NANOSECONDS) + "/" + Files.size(path);
        } catch (IOException absent) {
            return "none";
        }
    }

    private void write(final String first, final String epochs) throws IOException {
        final Path next = file.resolveSibling(file.getFileName() + ".new");
        Files.createDirectories(file.getParent());
        try (FileOutputStream out = new FileOutputStream(next.toFile())) {
            out.write((first + "\n" + epochs).getBytes(StandardCharsets.UTF_8));
            out.getFD().sync();
        }
        Files.move(next, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        saved = epochs;
    }
}
