"""An S3 server in a thread, for tests of what is behind URLs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer
from pyarrow import fs

from adapter.pipeline.places import Place

KEY, SECRET = "AKIAEXAMPLE", "s3cr3t"  # what moto takes: anything


@contextmanager
def s3_bucket(name: str = "bucket") -> Iterator[Place]:
    """A bucket, with credentials in its URL."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else each request is a line
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    address = f"127.0.0.1:{port}"
    try:
        options = f"endpoint_override={address}&scheme=http&region=us-east-1"
        system, path = fs.FileSystem.from_uri(f"s3://{KEY}:{SECRET}@{name}?{options}&allow_bucket_creation=true")
        system.create_dir(path)
        yield Place.of(f"s3a://{KEY}:{SECRET}@{name}?{options}")
    finally:
        # All servers of a process have the same buckets: what is left would be in the next test's.
        urlopen(Request(f"http://{address}/moto-api/reset", method="POST")).close()
        server.stop()
