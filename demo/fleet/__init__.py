"""A fleet with load, for the demos of the console and of the alerts: a Meta Service, adapters, brokers, consumer groups."""
