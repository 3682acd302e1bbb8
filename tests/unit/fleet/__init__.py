"""Tests of adapter.fleet."""
