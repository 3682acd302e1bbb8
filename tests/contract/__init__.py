"""What everything that implements a protocol has to do."""
