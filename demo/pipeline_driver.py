"""A process with one Spark session for all jobs of the demo, because starting a session for each job would take many seconds.

Standard input: one line of JSON for each job, a list of the arguments of `offset-adapter-spark`. Standard output: the output of
the job, then a line with DONE and the exit code.
"""

import json
import sys
from pathlib import Path
from typing import cast

from rich.console import Console

from adapter.errors import AdapterError
from adapter.pipeline import jobs
from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import MODULES, PLAIN_MODULES, Job, Switches, own_errors, run_plain_job, spark_part
from adapter.runtime.settings.config import load
from adapter.runtime.telemetry import logs

DONE = "\x1e done "
MASTER = "local[2]"
EXIT_ERROR = 2
_LOGGING = Path(jobs.__file__).with_name("log4j2.properties")
_SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # Half of the startup time is the JVM's second compiler stage, which pays off in long jobs only.
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={_LOGGING}",
}


def main() -> None:
    """Run jobs until the input ends. The argument is the path of job.toml."""
    config = load(Path(sys.argv[1]), JobConfig)
    logs.setup(config.log)
    spark = spark_part("adapter.pipeline.session").spark_session("demo", MASTER, _SETTINGS)
    console = Console(file=sys.stdout, highlight=False, width=110)
    for line in sys.stdin:
        name, *flags = json.loads(line)
        switches = Switches(apply="--apply" in flags, available_now="--available-now" in flags, console=console)
        try:
            if name in PLAIN_MODULES:
                code = run_plain_job(name, config, switches)
            else:
                job = cast("Job", spark_part(f"adapter.pipeline.{MODULES[name]}"))
                with own_errors():
                    code = job.run(spark, config, switches)
        except AdapterError as error:
            console.print(f"error: {error}", markup=False)
            code = EXIT_ERROR
        print(f"{DONE}{code}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
