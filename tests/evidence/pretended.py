"""A machine whose commands are a few lines of Python, for the tests of this package."""

from pathlib import Path

from tests.evidence.machines import Command, Machine, of_json

COUNTED = 'import sys, pathlib; pathlib.Path(sys.argv[1].partition("=")[2]).write_text(\'{"runs": 7}\')\n'


def pretended(directory: Path, name: str, then: str = "") -> Machine:
    """It counts 7 runs, and then does this."""
    module = f"pretended_{name}"
    (directory / f"{module}.py").write_text(COUNTED + then)

    def command(seed: int) -> Command:
        return Command((module,), (seed, seed), {"PYTHONPATH": str(directory)})

    return Machine(name, "", command, "--counts", of_json)
