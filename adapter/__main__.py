"""`python -m adapter` is `offset-adapter`."""

from adapter.cli import main

main()
