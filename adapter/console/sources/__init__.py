"""Where data come from, beside `adapter.fleet`: `meta_instances`, and `admin_calls` to single adapters, by `asking`."""
