"""The data source `offsets`: the Meta Service's offsets, read and merged."""
