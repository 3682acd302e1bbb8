"""`make soak`: real processes under load, killed, paused and cut off again and again, and a history that decides."""
