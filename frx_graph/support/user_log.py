"""Show what frx does while a program waits: one line each, on standard error.

The lines go through Python's `logging`, under `frx_graph`. If the program has configured logging, its own handlers show
them instead. The variable `FRX_LOG` sets the level.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

from frx_graph.support.plain_text import clean_line

LOG_VARIABLE = "FRX_LOG"
LOGGER = "frx_graph"
LEVELS = {"off": logging.CRITICAL + 1, "info": logging.INFO, "debug": logging.DEBUG}
_LINE_LIMIT = 400


class StandardErrorHandler(logging.Handler):
    """Writes records to the current standard error, unless a handler of the program gets them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; never raise."""
        # Standard error may be closed or missing, and the program goes on.
        with contextlib.suppress(Exception):
            if not any(handler is not self for handler in _list_handlers()):
                sys.stderr.write(f"frx: {record.getMessage()}\n")
                sys.stderr.flush()


def show_log() -> None:
    """Show lines from now on, at the level that `FRX_LOG` names: `off`, `info` (the default) or `debug`.

    A level that the program has set stays, unless the variable names one. Only the first call has an effect.
    """
    logger = logging.getLogger(LOGGER)
    if any(isinstance(handler, StandardErrorHandler) for handler in logger.handlers):
        return
    named = os.environ.get(LOG_VARIABLE, "").strip().lower()
    if named in LEVELS:
        logger.setLevel(LEVELS[named])
    elif logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logger.addHandler(StandardErrorHandler())
    if named and named not in LEVELS:
        write_line(logger, logging.INFO, f"{LOG_VARIABLE} is {named!r}, not one of {', '.join(LEVELS)}: ignored")


def write_line(logger: logging.Logger, level: int, text: str) -> None:
    """Log `text` on one line. Never raises, even if a handler of the program does."""
    with contextlib.suppress(Exception):
        logger.log(level, "%s", clean_line(text, _LINE_LIMIT))


def _list_handlers() -> Iterator[logging.Handler]:
    """Yield the handlers that get the lines."""
    logger: logging.Logger | None = logging.getLogger(LOGGER)
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None
