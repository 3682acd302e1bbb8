"""Structured logs on standard error: events with fields, for a person (console) or a collector (json)."""

import logging
import sys
from typing import Any

import structlog

from adapter.runtime.settings.config import LogSection


def setup(section: LogSection) -> None:
    """Configure structlog for this process."""
    console = section.format == "console"
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    set_level(section)


def set_level(section: LogSection) -> None:
    """Log from this level on, also through the loggers that exist already."""
    level = logging.getLevelNamesMapping()[section.level.upper()]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))


def audit() -> Any:  # noqa: ANN401 - as structlog.get_logger
    """Return a logger that writes at every level, whatever `log.level` says."""
    return structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))


TEXT_MAX = 255


def harmless(text: str, limit: int = TEXT_MAX) -> str:
    """Return a text from outside in a form that is safe to log: without control characters, and at most `limit` characters."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:limit])
    return shown if len(text) <= limit else f"{shown}..."
