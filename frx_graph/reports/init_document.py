"""Results of `frx init`: the JSON document `frx_init_v1`, and the diff of a script."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from frx_graph.doctor.next_steps import NextCommand
from frx_graph.instrumentation.script_search import ScriptsFound
from frx_graph.reports.doctor_document import CheckPart
from frx_graph.reports.render.document import Part
from frx_graph.reports.render.marked_text import split_lines
from frx_graph.support.check import Check


class ScriptPart(Part):
    """A script that seems to train."""

    path: Annotated[str, BeforeValidator(str)]
    line: int | None = Field(description="of the first loop that --patch would record; null: no such loop")
    over: str | None = Field(description="what that loop runs over, as source")
    instrumented: bool = Field(description="true: it imports frx_graph")
    note: str = Field(description="why no loop would be recorded; empty: a loop would be")


class NextPart(Part):
    """A command to run next."""

    command: str
    does: str


class FirstStepsPart(Part):
    """The machine, the training scripts, and the next commands."""

    checks: tuple[CheckPart, ...]
    scripts: tuple[ScriptPart, ...] = Field(description="the likeliest first")
    complete: bool = Field(description="false: there are more files than frx searches")
    next: tuple[NextPart, ...]


class PatchPart(Part):
    """Change that --patch or --unpatch made to a script."""

    file: str
    written: bool
    reason: str | None = Field(description="why it was not changed; null: it was written")
    diff: str = Field(description="the diff, for patch -p0; empty: no change")


class InitDocument(Part):
    """One of the two; the other is null."""

    schema_: Literal["frx_init_v1"] = Field(default="frx_init_v1", alias="schema")
    first_steps: FirstStepsPart | None = None
    patch: PatchPart | None = None


def build_first_steps(checks: Sequence[Check], scripts: ScriptsFound, following: Sequence[NextCommand]) -> InitDocument:
    """Return the document without --patch and --unpatch."""
    return InitDocument(first_steps=FirstStepsPart.from_record(scripts, checks=tuple(checks), next=tuple(following)))


def report_patch(file: Path, diff: str = "", reason: str | None = None) -> InitDocument:
    """Return the document of a script that was changed, or of one that was not for this reason."""
    return InitDocument(patch=PatchPart(file=str(file), written=reason is None, reason=reason, diff=diff))


_GREEN, _RED, _CYAN, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[36m", "\x1b[0m"
_NO_NEWLINE = "\n\\ No newline at end of file\n"


def make_diff(name: str, before: str, after: str) -> str:
    """Return a unified diff for `patch -p0`. Like `patch`, it ends lines only at line feeds, while `str.splitlines`
    also breaks them at form feeds."""
    changes = difflib.unified_diff(_split_lines(before), _split_lines(after), name, name)
    return "".join(line if line.endswith("\n") else line + _NO_NEWLINE for line in changes)


def _split_lines(text: str) -> list[str]:
    *ended, last = text.split("\n")
    return [f"{line}\n" for line in ended] + ([last] if last else [])


def render_diff(changes: str, *, color: bool) -> str:
    """Return a unified diff for a terminal, without control characters of the script."""
    shown = (" ".join(split_lines(line)) for line in changes.split("\n")[:-1])
    return "".join(f"{_add_color(line) if color else line}\n" for line in shown)


def _add_color(line: str) -> str:
    shade = {"+": _GREEN, "-": _RED, "@": _CYAN}.get(line[:1])
    return line if shade is None or line.startswith(("+++", "---")) else f"{shade}{line}{_PLAIN}"
