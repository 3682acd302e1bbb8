"""Many adapters as one: which there are, their state, and the lag of groups over all of them."""
