"""One part at a time, in this process."""
