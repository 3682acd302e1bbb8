"""The options of the tests' JVMs, which live for seconds."""

# Two fifths of a short job are the compiler's second stage, and the verification of Spark's classes.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
