"""What is going on, on a terminal; nothing where there is none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console


@contextlib.contextmanager
def stages() -> Iterator[Callable[[str], None]]:
    """A spinner on standard error with the words of the current stage; silent when that is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda _stage: None
        return
    with Console(stderr=True).status("starting") as status:
        yield lambda stage: status.update(stage)
