"""Rich console in memory, for terminal reports."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from frx_graph.support.plain_text import clean_line

INDENT = "    "
_MARKER = re.compile(r"- |\d+\. |--> |<-- ")
"""The beginning of an item of a list."""


def make_console(width: int, color: bool, *, soft_wrap: bool = False) -> tuple[io.StringIO, Console]:
    """Return the output, and a console that prints to it, without markup; with `soft_wrap` lines are not cut."""
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
    """Print the heading of a section, after an empty line."""
    console.print()
    console.print(Text(title, "bold"))


def print_wrapped(console: Console, text: str, indent: str = INDENT, hanging: str | None = None) -> None:
    """Print lines wrapped to the console's width; longer words stay whole. Lines after the first begin with `hanging`,
    by default below the text of an item."""
    marker = _MARKER.match(text)
    below = indent + " " * (0 if marker is None else marker.end())
    wrapper = textwrap.TextWrapper(
        console.width,
        initial_indent=indent,
        subsequent_indent=below if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in wrapper.wrap(clean_line(text, 2000)):
        console.print(Text(line))


def print_section(console: Console, title: str, lines: Iterable[str]) -> None:
    """Print a section with wrapped lines, if there are lines."""
    for number, line in enumerate(lines):
        if not number:
            print_title(console, title)
        print_wrapped(console, line)


def print_command(console: Console, command: str) -> None:
    """Print a command of any length on one line, so that it can be copied."""
    console.print(Text(f"{INDENT * 2}{clean_line(command, len(command))}"))


def print_more(console: Console, total: int, shown: int, noun: str = "") -> None:
    """Print the number of the `total` that are not `shown`, if any."""
    if total > shown:
        console.print(Text(f"{INDENT}{total - shown} more{noun and f' {noun}'}: --json has all"))


def print_table(console: Console, headings: Sequence[str], rows: Iterable[Iterable[str | Text]]) -> None:
    """Print a table without rules: names on the left, figures on the right."""
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column(headings[0], no_wrap=True, overflow="ellipsis")
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table, soft_wrap=False)
