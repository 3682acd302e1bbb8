"""Unit tests: each test runs one component in this process."""
