"""Histories of real processes, judged by two checkers: our own (`adapter.testing.history`) and Porcupine.

`recorded` writes and reads them, `broken` breaks them on purpose and draws arbitrary ones, `verdicts` asks both checkers,
`go/` has the model for Porcupine. docs/design/linearizability.md says what is promised.
"""
