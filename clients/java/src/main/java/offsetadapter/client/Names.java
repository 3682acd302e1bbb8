package offsetadapter.client;

import java.nio.charset.StandardCharsets;

/** What a name has to be, see offsets.proto: 1 to 255 bytes of UTF-8 without control characters. */
final class Names {
    private static final int MOST_BYTES = 255;

    private Names() {
    }

    static String check(final String name, final String field) {
        if (name == null || name.isEmpty()) {
            throw new InvalidException(field, "is empty");
        }
        // A char has 3 bytes at most, so short names need no encoding to be counted.
        if (name.length() > MOST_BYTES / 3 && name.getBytes(StandardCharsets.UTF_8).length > MOST_BYTES) {
            throw new InvalidException(field, name.substring(0, 20) + "... is longer than " + MOST_BYTES + " bytes");
        }
        for (int at = 0; at < name.length(); at++) {
            final char letter = name.charAt(at);
            if (Character.isISOControl(letter)) {
                throw new InvalidException(field, "has a control character");
            }
            if (Character.isHighSurrogate(letter) && at + 1 < name.length() && Character.isLowSurrogate(name.charAt(at + 1))) {
                at++;
            } else if (Character.isSurrogate(letter)) {
                throw new InvalidException(field, "has half of a surrogate pair, which UTF-8 cannot have");
            }
        }
        return name;
    }
}
