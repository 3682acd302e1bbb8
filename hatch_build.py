"""Writes into each wheel and sdist the commit that it was built of: `adapter/runtime/commit`, one line.

The commit is that of the checkout; or what an sdist, which has no history, brought along; or what the variable
OFFSET_ADAPTER_COMMIT says (the image is built without the history). An editable install gets no file: it asks git.
"""

import os
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACE = "adapter/runtime/commit"


class CommitHook(BuildHookInterface):  # of any builder
    """Adds the file. A build whose commit nobody knows has none, and `offset-adapter --version` says so."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a target is built; `version` is `standard`, or `editable`."""
        root = Path(self.root)
        if version == "editable" or (root / PLACE).exists():
            return
        commit = os.environ.get("OFFSET_ADAPTER_COMMIT") or self._of_checkout()
        if commit is not None:
            file = Path(mkdtemp(prefix="commit-"), "commit")
            file.write_text(f"{commit}\n", encoding="ascii")
            build_data["force_include"][str(file)] = PLACE
            self._written = file

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's own
        """Called after a target is built."""
        if written := getattr(self, "_written", None):
            written.unlink()
            written.parent.rmdir()

    def _of_checkout(self) -> str | None:
        source = Path(self.root, "adapter/runtime/version.py")
        found: dict[str, Any] = {"__file__": str(source), "__name__": "version"}
        exec(compile(source.read_text(encoding="utf-8"), source, "exec"), found)  # noqa: S102 - our own, and the package's parts are absent
        commit: str | None = found["commit_of"](Path(self.root))
        return commit
