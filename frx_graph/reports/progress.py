"""Show the current stage on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from frx_graph.support.plain_text import clean_line


@contextlib.contextmanager
def show_stages(*, shown: bool = True) -> Iterator[Callable[[str], None]]:
    """Show a spinner on standard error that names the current stage. Silent if that is not a terminal, or if not
    `shown`."""
    if not shown or not sys.stderr.isatty():
        yield lambda _stage: None
        return
    # Imported late: programs that look up their plan import this module, and do not need rich.
    from rich.console import Console
    from rich.text import Text

    # Without markup: a model's own output goes through this console, too.
    with Console(stderr=True, highlight=False, markup=False).status("starting") as status:
        # As `Text`: in a plain string the spinner takes brackets, as in a path, for styles.
        yield lambda stage: status.update(Text(clean_line(stage)))
