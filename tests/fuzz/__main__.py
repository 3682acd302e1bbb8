"""`python -m tests.fuzz TARGET`: run one target with atheris; see README.md."""

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import structlog

WORDS = ("offsetTable", "lmqOffsetTable", "dataVersion", "brokerName", "queueId", "topic", "@broadcast", "%RETRY%", "shard")
WATCHED = [
    "adapter.formats",
    "adapter.rocketmq",
    "adapter.client.offset_store.local_file",
    "adapter.runtime.serving.http2",
    "adapter.sidecar.api",
    "adapter.sidecar.engine",
    "adapter.sidecar.lag",
    "adapter.fleet.scaling",
    "adapter.metaservice",
    "adapter.meta",
    "adapter.model",
    "adapter.client.broker_log",
    "adapter.console",
    "adapter.runtime.settings.config",
    "adapter.pipeline.journal.segment",
    "adapter.sidecar.journal.frames",
    "json.decoder",
    "json.scanner",
]


def main() -> None:
    """Until something is found, or as long as libFuzzer's options say."""
    atheris = import_module("atheris")  # no dependency of the project, and so without types
    with atheris.instrument_imports(include=WATCHED):
        targets, seeds = import_module("tests.fuzz.targets").TARGETS, import_module("tests.fuzz.seeds").seeds
    structlog.configure(processors=[drop])
    target, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        corpus = Path(directory, "corpus")
        corpus.mkdir()
        for number, seed in enumerate(seeds(target)):
            (corpus / f"seed-{number}").write_bytes(seed)
        words = Path(directory, "words")
        words.write_text("".join(f'"{word}"\n' for word in WORDS))
        limits = ["-timeout=20", "-rss_limit_mb=1024", "-max_len=8192", f"-dict={words}"]
        atheris.Setup([sys.argv[0], *limits, *options, str(corpus)], targets[target])
        atheris.Fuzz()


def drop(*_: object) -> NoReturn:
    """A log that keeps nothing."""
    raise structlog.DropEvent


if __name__ == "__main__":
    main()
