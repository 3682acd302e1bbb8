"""A certificate authority for one test, made with `openssl`.

Debian has it wherever python3-venv is: that needs python3-pip-whl, which needs ca-certificates, which needs openssl.
"""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificate(NamedTuple):
    """A certificate and its key, PEM files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates for 127.0.0.1 and localhost."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        if not shutil.which("openssl"):
            pytest.skip("not run: openssl is not on PATH")
        self._directory = directory
        self._name = name
        self.cert = directory / f"{name}.crt"
        self._key = directory / f"{name}.key"
        _openssl("req", "-x509", *_new_key(self._key), "-out", self.cert, "-days", "2", "-subj", f"/CN={name}")

    def issue(self, name: str, of: str = "IP:127.0.0.1,DNS:localhost") -> Certificate:
        """A new certificate that this authority has signed, of these addresses and names."""
        made = Certificate(self._directory / f"{self._name}-{name}.crt", self._directory / f"{self._name}-{name}.key")
        request = self._directory / f"{name}.csr"
        extensions = self._directory / "extensions"
        extensions.write_text(f"subjectAltName={of}\n")
        _openssl("req", *_new_key(made.key), "-out", request, "-subj", f"/CN={name}")
        signing: list[str | Path] = [
            "-CA",
            self.cert,
            "-CAkey",
            self._key,
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            extensions,
        ]
        _openssl("x509", "-req", "-in", request, "-out", made.cert, *signing)
        return made


def _new_key(path: Path) -> list[str | Path]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path]


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
