"""A real consumer that keeps its position in the adapter, and what it takes to see that it loses nothing. See README.md."""
