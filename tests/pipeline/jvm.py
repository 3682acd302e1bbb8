"""The options of the tests' JVMs, which live for seconds."""

# Half of a short job is the compiler's second stage.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
