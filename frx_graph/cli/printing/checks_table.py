"""Checks on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from frx_graph.support.check import Check, Status
from frx_graph.support.plain_text import one_line

_LONGEST = 1000
"""Characters of what was found: paths, and what others say went wrong."""
_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.ERROR: "bold red"}


def print_checks(checks: tuple[Check, ...], console: Console) -> None:
    """One line a check; the hint below it where something is to be done."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        value = Text(one_line(check.value, _LONGEST))
        if check.hint:
            value.append(f"\n{one_line(check.hint, _LONGEST)}", style="dim")
        table.add_row(Text(check.status.value, style=_STYLES[check.status]), Text(check.name), value)
    console.print(table)
