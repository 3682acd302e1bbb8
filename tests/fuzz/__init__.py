"""Fuzzing of all that reads what others wrote or sent, with atheris; see README.md. Not part of `make test`."""
