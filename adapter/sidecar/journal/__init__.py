"""Every change of an offset as Parquet segments, for the pipeline. Written by a thread that never holds up a commit."""
