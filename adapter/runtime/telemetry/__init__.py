"""What a process tells of itself.

`logs`, `metrics` and `metrics_http`; for a collector `spans`, `otlp`, `otlp_metrics`, and `opening`, which loads these two where
one is configured.
"""
