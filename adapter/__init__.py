"""The offset adapter: the sidecar that keeps a message broker's consumer offsets."""

from importlib.metadata import version

__version__ = version("offset-adapter")
