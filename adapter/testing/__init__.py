"""Fakes, real processes, histories: for tests, the demo and benchmarks. The product imports none of it."""
