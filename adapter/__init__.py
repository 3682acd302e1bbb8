"""The offset adapter: the sidecar that keeps a message broker's consumer offsets."""


def __getattr__(name: str) -> str:
    """`__version__`, looked up when it is asked for: that alone takes a third of the time in which a command starts."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from adapter.runtime.version import version  # noqa: PLC0415

    return version()
