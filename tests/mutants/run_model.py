"""The model on a mutant: ends with 0 when all invariants held, with CAUGHT when something broke, and says what."""

import sys

from tests.model.runs import run

SEED = 1
CAUGHT = 3  # an import that fails ends with 1, pytest and Python use 2


def main() -> None:
    """So many runs as the argument says, always the same ones, not shrunk: nobody reads them."""
    try:
        run(int(sys.argv[1]), seed=SEED, smaller=False)
    except Exception as error:  # noqa: BLE001 - whatever a bug leads to
        print(type(error).__name__, *str(error).splitlines()[:1])  # noqa: T201 - for the parent process
        sys.exit(CAUGHT)


if __name__ == "__main__":
    main()
