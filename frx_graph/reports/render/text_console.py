"""A rich console that writes into memory: what a report for terminals is printed on."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text


def text_console(width: int, color: bool, *, soft_wrap: bool = False) -> tuple[io.StringIO, Console]:
    """What is printed, and the console to print on. Names are no markup and nothing is highlighted; with `soft_wrap`
    lines are as long as they are given."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        soft_wrap=soft_wrap,
    )
    return out, console


def print_title(console: Console, title: str) -> None:
    """The heading of a part, behind an empty line."""
    console.print()
    console.print(Text(title, "bold"))
