"""The result of `frx fix`: the JSON document `frx_fix_v1`, and its text."""

from __future__ import annotations

import enum
from typing import Literal

from pydantic import Field
from rich.console import Console
from rich.text import Text

from frx_graph.records import Effort, Fixability, SourceEdit
from frx_graph.reports.render.document import Part
from frx_graph.reports.render.marked_text import split_lines
from frx_graph.reports.render.quantities import format_count
from frx_graph.reports.render.text_console import make_console, print_wrapped
from frx_graph.support.plain_text import clean_line

_REASON_LENGTH = 300
_KERNELS_SHOWN = 4
_DIFF_STYLES = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"), ("diff ", "bold"))


class FixState(enum.StrEnum):
    """The outcome of a fix."""

    PROPOSED = "proposed"
    """It was not tried."""
    PROVED = "proved"
    """A trial has shown that the program computes the same, and is faster or as fast."""
    REJECTED = "rejected"
    """A trial has shown the opposite."""
    OPEN = "open"
    """A trial came to no conclusion."""
    LEFT = "left"
    """It was left out, for `reason`."""


class FixedFindingPart(Part):
    """A finding, by its place."""

    rule: str
    title: str
    file: str
    line: int
    module_path: str
    effort: Effort = Field(description="that the finding's fix takes by hand")


class FixPart(Part):
    """One change of the source, and the findings that it fixes."""

    findings: tuple[FixedFindingPart, ...]
    fixer: str
    unsafe: bool = Field(description="true: it changes more than speed on purpose, and needs --unsafe-fixes")
    edits: tuple[SourceEdit, ...]
    diff: str = Field(description="its hunks as a unified diff, without the files' names")
    state: FixState
    reason: str = Field(description="of the trial's verdict, or why the fix was left out; empty: there is none")


class UnfixedPart(Part):
    """A finding that no fix is proposed for."""

    finding: FixedFindingPart
    fixability: Fixability
    reason: str


class FixDocument(Part):
    """The fixes of one target's findings."""

    schema_: Literal["frx_fix_v1"] = Field(default="frx_fix_v1", alias="schema")
    target: str
    fixes: tuple[FixPart, ...]
    not_fixed: tuple[UnfixedPart, ...]
    diff: str = Field(description="of the fixes that are kept, for `git apply` or `patch -p1`; empty: there are none")
    proved: bool = Field(description="true: a trial of all changes of the diff together has proved them")
    verdict: str = Field(description="of that trial, in words; empty: there was none")
    kernels: str = Field(
        default="", description="changes in what a step runs, as that trial has observed them; empty: it has not"
    )
    decision: str = Field(default="", description="the ledger's event about that trial; empty: there was no trial")
    applied: bool = Field(description="true: the files have been changed")
    patch: str | None = Field(default=None, description="the file that the diff was written to")


def render_fixes(document: FixDocument, *, width: int, color: bool) -> str:
    """Return the diff, what became of each fix, and why other findings have none."""
    out, console = make_console(width, color)
    findings = sum(len(fix.findings) for fix in document.fixes) + len(document.not_fixed)
    fixable = sum(len(fix.findings) for fix in document.fixes)
    if not findings:
        console.print(Text(f"{clean_line(document.target)}: no findings", "bold green"))
    else:
        text = f"{clean_line(document.target)}: {fixable} of {format_count(findings, 'finding')} fixable"
        console.print(Text(f"{text}, by {format_count(len(document.fixes), 'change')}", "bold"))
    if document.diff:
        console.print()
        _print_diff(console, document.diff)
    if document.fixes:
        console.print()
    for fix in document.fixes:
        _print_fix(console, fix)
    if document.not_fixed:
        console.print()
        console.print(Text("Not fixable", "bold"))
    for one in document.not_fixed:
        print_wrapped(console, f"{_format_place(one.finding)}: {clean_line(one.reason, _REASON_LENGTH)}", indent="  ")
    _print_outcome(console, document)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().rstrip().split("\n"))


def _print_diff(console: Console, diff: str) -> None:
    for line in split_lines(diff):
        style = next((style for start, style in _DIFF_STYLES if line.startswith(start)), "")
        console.print(Text(line, style, overflow="fold"), soft_wrap=True)


def _print_fix(console: Console, fix: FixPart) -> None:
    places = list(dict.fromkeys(map(_format_place, fix.findings)))
    unsafe = ", unsafe" if fix.unsafe else ""
    reason = f": {clean_line(fix.reason, _REASON_LENGTH)}" if fix.reason else ""
    print_wrapped(console, f"{fix.state.value}{unsafe}: {', '.join(places)}{reason}", indent="  ")


def _format_place(finding: FixedFindingPart) -> str:
    return f"{finding.rule} {clean_line(finding.file)}:{finding.line}"


def _print_outcome(console: Console, document: FixDocument) -> None:
    said = ""
    if document.verdict:
        said = f"{'proved' if document.proved else 'not proved'}, all together: {document.verdict}"
    if document.applied:
        said = f"{said}; the files are changed" if said else "the files are changed; nothing was proved"
    elif document.patch is not None:
        said = (
            f"{said}; written to {clean_line(document.patch)}" if said else f"written to {clean_line(document.patch)}"
        )
    elif document.diff and not said:
        said = "nothing was changed: --apply proves the fixes in a trial, and writes them"
    if said:
        console.print()
        print_wrapped(console, f"{said[0].upper()}{said[1:]}.")
    if changed := [part for part in document.kernels.split("; ")[1:] if "::empty" not in part]:
        print_wrapped(console, f"In one step: {clean_line(', '.join(changed[:_KERNELS_SHOWN]), _REASON_LENGTH)}.")
    if document.decision:
        print_wrapped(console, f"{document.decision[0].upper()}{clean_line(document.decision, _REASON_LENGTH)[1:]}.")
