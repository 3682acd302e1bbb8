"""The conformance suite of clients: one suite for all languages, over real processes.

`clients/SPEC.md` has the rules that it checks.
"""
