"""A bucket of an S3 server in this process, whose URLs have credentials."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import boto3  # type: ignore[import-untyped]
from moto.server import ThreadedMotoServer

KEY, SECRET = "AKIAKEY", "SECRETWORD"
_NAME = "journals"


class Bucket(NamedTuple):
    """A bucket: a client of its server, and the parameters of its URLs."""

    client: Any
    parameters: str

    def url(self, folder: str) -> str:
        """The URL of a directory, with credentials."""
        return f"s3://{KEY}:{SECRET}@{_NAME}/{folder}?{self.parameters}"

    def shown(self, folder: str) -> str:
        """The same without credentials."""
        return f"s3://{_NAME}/{folder}?{self.parameters}"

    def put(self, root: Path, path: Path, folder: str) -> str:
        """Copy a file below a local directory to a directory of the bucket. The object's key."""
        key = f"{folder}/{path.relative_to(root)}"
        self.client.upload_file(str(path), _NAME, key)
        return key

    def delete(self, key: str) -> None:
        """Delete an object."""
        self.client.delete_object(Bucket=_NAME, Key=key)


@contextmanager
def running_bucket() -> Iterator[Bucket]:
    """An empty bucket, while its server runs."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=_NAME)
    try:
        yield Bucket(client, f"scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1")
    finally:
        server.stop()


def is_hidden(*shown: object) -> bool:
    """Whether no text or value shows the key or the secret."""
    return not any(word in f"{value} {value!r}" for value in shown for word in (KEY, SECRET))
