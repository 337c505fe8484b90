"""Show the current stage on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from frx_graph.support.plain_text import clean_line


@contextlib.contextmanager
def show_stages(*, shown: bool = True) -> Iterator[Callable[[str], None]]:
    """A spinner on standard error with the words of the current stage; silent when that is not a terminal, or it is not
    to be shown."""
    if not shown or not sys.stderr.isatty():
        yield lambda _stage: None
        return
    # Not before: programs that look their plan up import this module, and would wait for rich in vain.
    from rich.console import Console
    from rich.text import Text

    # Without markup: what a model prints meanwhile goes through this console, too.
    with Console(stderr=True, highlight=False, markup=False).status("starting") as status:
        # As `Text`: the spinner itself takes brackets in a plain string, such as a path, for styles.
        yield lambda stage: status.update(Text(clean_line(stage)))
