"""Results of `frx init`: the JSON document `frx_init_v1`, and the difference to a script."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from frx_graph.doctor.next_steps import NextCommand
from frx_graph.instrumentation.script_search import ScriptsFound
from frx_graph.reports.doctor_document import CheckPart
from frx_graph.reports.render.document import Part
from frx_graph.reports.render.marked_text import split_lines
from frx_graph.support.check import Check


class ScriptPart(Part):
    """A script that seems to train."""

    path: str
    line: int | None = Field(description="of the first loop that --patch would record; null: there is none")
    over: str | None = Field(description="what that loop runs over, as source")
    instrumented: bool = Field(description="whether it imports frx_graph")
    note: str = Field(description="why no loop would be recorded; empty where one would be")


class NextPart(Part):
    """What to type next."""

    command: str
    does: str


class FirstStepsPart(Part):
    """What there is, and what to do with it."""

    checks: tuple[CheckPart, ...]
    scripts: tuple[ScriptPart, ...] = Field(description="the likeliest first")
    complete: bool = Field(description="false: there are more files than were looked at")
    next: tuple[NextPart, ...]


class PatchPart(Part):
    """What --patch or --unpatch did to a script."""

    file: str
    written: bool
    reason: str | None = Field(description="why it was left as it is; null: it was written")
    diff: str = Field(description="what was changed, for patch -p0; empty where nothing was")


class InitDocument(Part):
    """One of the two, the other is null."""

    schema_: Literal["frx_init_v1"] = Field(default="frx_init_v1", alias="schema")
    first_steps: FirstStepsPart | None = None
    patch: PatchPart | None = None


def build_first_steps(checks: Sequence[Check], scripts: ScriptsFound, following: Sequence[NextCommand]) -> InitDocument:
    """Return the document without --patch and --unpatch."""
    return InitDocument(
        first_steps=FirstStepsPart(
            checks=tuple(map(CheckPart.from_record, checks)),
            scripts=tuple(ScriptPart.from_record(script, path=str(script.path)) for script in scripts.scripts),
            complete=scripts.complete,
            next=tuple(map(NextPart.from_record, following)),
        )
    )


def report_written(file: Path, diff: str) -> InitDocument:
    """Return the document of a script that was changed."""
    return InitDocument(patch=PatchPart(file=str(file), written=True, reason=None, diff=diff))


def report_unchanged(file: Path, reason: str) -> InitDocument:
    """Return the document of a script that was left as it is."""
    return InitDocument(patch=PatchPart(file=str(file), written=False, reason=reason, diff=""))


_GREEN, _RED, _CYAN, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[36m", "\x1b[0m"
_NO_NEWLINE = "\n\\ No newline at end of file\n"


def make_diff(name: str, before: str, after: str) -> str:
    """A unified diff that `patch -p0` takes. Lines end where it ends them: at line feeds, and nowhere else, while
    `str.splitlines` breaks them at form feeds, too."""
    changes = difflib.unified_diff(_split_lines(before), _split_lines(after), name, name)
    return "".join(line if line.endswith("\n") else line + _NO_NEWLINE for line in changes)


def _split_lines(text: str) -> list[str]:
    *ended, last = text.split("\n")
    return [f"{line}\n" for line in ended] + ([last] if last else [])


def render_diff(changes: str, *, color: bool) -> str:
    """A unified diff as a terminal can show it: control characters of the script do not get there."""
    shown = (" ".join(split_lines(line)) for line in changes.split("\n")[:-1])
    return "".join(f"{_add_color(line) if color else line}\n" for line in shown)


def _add_color(line: str) -> str:
    shade = {"+": _GREEN, "-": _RED, "@": _CYAN}.get(line[:1])
    return line if shade is None or line.startswith(("+++", "---")) else f"{shade}{line}{_PLAIN}"
