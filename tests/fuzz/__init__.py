"""Fuzzing of all that reads files of other systems, with atheris; see README.md. Not part of `make test`."""
