"""The command `offset-adapter-spark`, with the faults of `faults.py`."""

from adapter.pipeline.cli import main
from tests.pipeline import faults

if __name__ == "__main__":
    faults.install_in_driver()
    main()
