"""Tests of the console, over a fleet that says what they want."""
