"""Makes the files of tests/data/rocketmq again, with RocketMQ's own classes: `python -m tests.interop.fixtures`."""

import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.interop.rocketmq import KINDS, SINGLE, Broker, Client, Line

DATA = Path(__file__).parents[1] / "data/rocketmq"
VERSION = "5.3.3"
TABLE = DATA / "offsets-5x.tsv"
OTHERS: list[Line] = [("pull", "g", "T", 3, 77), ("topic", "T"), ("group", "g")]
NAMES = {"json": "broker-5x.json", "lmq": "broker-5x-lmq.json", "v1": "store-v1.tar.gz", "v2": "store-v2.tar.gz"}


def main() -> None:
    """Each kind of RocketMQ 5.3, a V2 store whose broker was killed, so that all is in its log, and the single store of 5.5."""
    offsets: list[Line] = [("offset", *line.split("\t")) for line in TABLE.read_text().splitlines()]
    with TemporaryDirectory() as work:
        for kind in KINDS:
            if kind.version == VERSION:
                broker = Broker(kind, Path(work, kind.name))
                broker.write([*offsets, *OTHERS])
                _keep(broker.offsets, NAMES[kind.name])
        single = Broker(SINGLE, Path(work, "single"))
        single.write([*offsets, *OTHERS])
        _keep(single.offsets, "store-single.tar.gz")
        killed = Broker(next(kind for kind in KINDS if (kind.version, kind.name) == (VERSION, "v2")), Path(work, "killed"))
        killed.halt([*offsets, *OTHERS])
        _keep(killed.offsets, "store-v2-killed.tar.gz")
        client = Client(VERSION, Path(work, "client"))
        client.write([("broker-a", "T", 3, 42), ("broker-b", "T", 0, 9_007_199_254_740_993)])
        _keep(client.offsets, "client-5x.json")


def _keep(file: Path, name: str) -> None:
    if file.is_file():
        shutil.copyfile(file, DATA / name)
        return
    with tarfile.open(DATA / name, "w:gz") as tar:
        for part in sorted(file.iterdir()):
            tar.add(part, part.name)


if __name__ == "__main__":
    main()
