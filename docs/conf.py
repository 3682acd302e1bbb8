"""Settings of the documentation site: `make docs` builds it into build/docs. Every warning is an error there.

The source directory is the root of the repository, so that links between documents are the same on GitHub and on the site.
"""

import os
import sys
import tomllib
from pathlib import Path

import click
from pygments.lexers.rust import RustLexer
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import rpc_reference  # noqa: E402 - beside this file

# The command asks for the version of its package, which is not installed here.
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
_metadata = ROOT / "build" / "metadata" / f"offset_adapter-{release}.dist-info" / "METADATA"
_metadata.parent.mkdir(parents=True, exist_ok=True)
_metadata.write_text(f"Metadata-Version: 2.1\nName: offset-adapter\nVersion: {release}\n", encoding="utf-8")
sys.path.append(str(_metadata.parent.parent))

project = "offset-adapter"
author = "The offset-adapter authors"
copyright = "Apache-2.0"  # noqa: A001 - Sphinx's name

root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/README.md", "tests/fuzz/README.md"]
include_patterns += [f"clients/{page}.md" for page in ("SPEC", "go/README", "java/README", "rust/README")]
include_patterns += [f"benchmarks/{page}.md" for page in ("README", "peers/README", "results/summary")]
exclude_patterns = [".*", "build", "data", "adapter", "deploy", "demo", "config", "proto", "requirements", "**/__pycache__"]

extensions = ["myst_parser", "sphinx_click"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # the anchors are those of GitHub
nitpicky = True

html_theme = "furo"
html_title = "offset-adapter"
html_static_path: list[str] = []
html_copy_source = False
html_additional_pages = {"index": "redirect.html"}
templates_path = ["_templates"]

# Drawing Mermaid in a browser takes a script of 3 MB, which sphinxcontrib-mermaid loads from a CDN by default. These pages load
# nothing from other hosts: the picture is shown as its source, with the same picture in characters below it. Set MERMAID_JS to
# the address of a copy of mermaid.esm.min.mjs to have it drawn.
if address := os.environ.get("MERMAID_JS"):
    extensions.append("sphinxcontrib.mermaid")
    myst_fence_as_directive = ["mermaid"]
    mermaid_use_local = address


def patterns_as_they_are(app: Sphinx, context: click.Context, lines: list[str]) -> None:  # noqa: ARG001 - Sphinx passes them
    """In the description of a command `'orders-*'` begins no emphasis."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def setup(app: Sphinx) -> None:
    """Write the page of the RPCs, show Mermaid as it is written where it is not drawn, and a pattern of a command as it is."""
    app.add_lexer("mermaid", TextLexer)
    app.add_lexer("rust,no_run", RustLexer)  # of the crate's README: rustdoc compiles it, and runs nothing
    app.connect("sphinx-click-process-description", patterns_as_they_are)
    rpc_reference.write(ROOT / "proto", ROOT / "docs" / "rpc.md")
