"""The command `offset-adapter-spark`, with the faults of `faults.py`.

With a file in the variable THEN the job runs a second time, in the same JVM, by the settings of that file. Each fault happens
once: nothing disturbs that run.
"""

import os
import sys

from adapter.pipeline.cli import main
from adapter.pipeline.jobs import DONE
from tests.pipeline import faults

if __name__ == "__main__":
    faults.install_in_driver()
    try:
        main()
    except SystemExit as ended:
        if ended.code != DONE or "THEN" not in os.environ:
            raise
    sys.argv[sys.argv.index("--config") + 1] = os.environ["THEN"]
    main()
