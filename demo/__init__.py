"""The demo: real offsets, real processes, a kill -9 and an outage in the middle, and a comparison of every key at the end."""
