"""`frx init`: check this machine, find training scripts, and instrument one on request."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from frx_graph.cli.interrupt import exit_on_interrupt
from frx_graph.cli.printing.output import (
    OnlyJsonOption,
    QuietOption,
    is_quiet,
    print_checks,
    print_document,
    print_notice,
    print_text,
    show_stages,
)
from frx_graph.doctor.installation import check_first_steps
from frx_graph.doctor.next_steps import NextCommand, describe_script, suggest_commands
from frx_graph.errors import OptionError
from frx_graph.instrumentation.patch import patch as patched
from frx_graph.instrumentation.patch import remove_patch as unpatched
from frx_graph.instrumentation.script import Script, read_script, replace_script
from frx_graph.instrumentation.script_search import ScriptsFound, find_scripts
from frx_graph.reports.init_document import (
    build_first_steps,
    make_diff,
    render_diff,
    report_patch,
)
from frx_graph.reports.render.document import to_json
from frx_graph.reports.render.text_console import print_wrapped
from frx_graph.support.check import Check
from frx_graph.support.plain_text import clean_line

MOST_SHOWN = 10
"""Scripts."""
_LONGEST = 4000
"""Characters of a path."""
_FOR_SOURCES = ("nvcc", "ptxas")
"""Tools that first steps do not need."""


def init(
    patch: Annotated[
        Path | None,
        typer.Option("--patch", metavar="FILE", help="Instrument this training script to record its run."),
    ] = None,
    unpatch: Annotated[
        Path | None, typer.Option("--unpatch", metavar="FILE", help="Remove the lines that --patch added.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write the script without asking.")] = False,
    as_document: OnlyJsonOption = False,
    _quiet: QuietOption = False,
) -> None:
    """Show what this machine has, which scripts here train models, and which command to run next. With --patch, show
    the changes to a script, ask, and write it. Exit code 0: done, or nothing to do; 2: an error."""
    if patch is not None and unpatch is not None:
        raise OptionError("--patch and --unpatch are both given", "take one of them")
    if patch is not None:
        script = read_script(patch)
        found = patched(script)
        text = None if found is None else found.text
        written = _write_script(script, text, "imports frx_graph already", yes=yes, as_document=as_document)
        if written and not as_document:
            print_notice(f"frx: next: frx collect --explain -- python {clean_line(shlex.quote(str(patch)), _LONGEST)}")
            print_notice(f"frx: undo: frx init --unpatch {clean_line(shlex.quote(str(patch)), _LONGEST)}")
    elif unpatch is not None:
        script = read_script(unpatch)
        _write_script(script, unpatched(script), "has no lines added by frx init", yes=yes, as_document=as_document)
    elif yes:
        raise OptionError("--yes answers --patch and --unpatch", "name a script with one of them")
    else:
        _show_first_steps(as_document)


def _show_first_steps(as_document: bool) -> None:
    with show_stages() as progress:
        progress("looking at this machine")
        with exit_on_interrupt():
            looked = check_first_steps()
        checks = tuple(check for check in looked if check.name not in _FOR_SOURCES)
        progress("looking for training scripts")
        scripts = find_scripts(Path.cwd())
    following = suggest_commands(checks, scripts)
    if as_document:
        print_document(to_json(build_first_steps(checks, scripts, following)))
        return
    if not is_quiet():
        _print_first_steps(checks, scripts, following)


def _print_first_steps(checks: Sequence[Check], scripts: ScriptsFound, following: Sequence[NextCommand]) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    print_checks(tuple(checks), console)
    console.print("\nTraining scripts here" if scripts.scripts else "\nNo training script was found here.")
    for script in scripts.scripts[:MOST_SHOWN]:
        done = ", instrumented" if script.instrumented else ""
        print_wrapped(console, f"{script.path}  {describe_script(script)}{done}", "  ", "      ")
    if len(scripts.scripts) > MOST_SHOWN:
        console.print(f"  {len(scripts.scripts) - MOST_SHOWN} more")
    if not scripts.complete:
        console.print("  There are more files than frx searches.")
    console.print("\nNext")
    for each in following:
        console.print(f"  {clean_line(each.command)}\n      {each.does}")


def _format_path(path: Path) -> str:
    return clean_line(str(path), _LONGEST)


def _write_script(script: Script, text: str | None, why_not: str, *, yes: bool, as_document: bool) -> bool:
    """Show the changes, ask, and write the script; without a `text`, say why it is left unchanged. Return True if it
    was written. Raises `OptionError` if there is no terminal to ask on."""
    if text is None:
        if as_document:
            print_document(to_json(report_patch(script.path, reason=why_not)))
        print_notice(f"frx: {_format_path(script.path)} {why_not}; left unchanged")
        return False
    changes = make_diff(str(script.path), script.text, text)
    if not as_document:
        print_text(lambda color, **_: render_diff(changes, color=color))
    if not yes:
        if is_quiet() or as_document or not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise OptionError(
                f"{script.path} was not written: there is no terminal to ask on", "--yes writes it without asking"
            )
        if not typer.confirm(f"Write {_format_path(script.path)}?", err=True):
            print_notice(f"frx: {_format_path(script.path)} was left unchanged")
            return False
    replace_script(script, text)
    if as_document:
        print_document(to_json(report_patch(script.path, changes)))
    print_notice(f"frx: wrote {_format_path(script.path)}")
    return True
