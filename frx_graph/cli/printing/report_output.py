"""Filter, render and write an advice, and turn it into an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from frx_graph.advice import Advice
from frx_graph.cli.printing.output import check_folder, print_report, write_output
from frx_graph.reports.advice.baseline import build_baseline, filter_new, read_baseline, write_baseline
from frx_graph.reports.advice.selection import apply_selection, parse_selection
from frx_graph.reports.advice.suppressions import apply_suppressions
from frx_graph.reports.advice.terminal import Format, detect_terminal
from frx_graph.reports.advice.wording import Outcome, classify_outcome
from frx_graph.reports.render.source_path import find_checkout_root
from frx_graph.rules.rule_card import load_all_cards


@dataclass(frozen=True)
class ReportOptions:
    """The options that all reporting commands share."""

    format: Format
    output: Path | None
    top: int
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    baseline: Path | None = None
    write_baseline: Path | None = None
    exit_zero: bool = False

    def check(self) -> None:
        """Raise `OptionError` for wrong options, before any long work begins."""
        parse_selection(self.select, self.ignore, _list_known_rules())
        if self.baseline is not None:
            read_baseline(self.baseline)
        for path in (self.output, self.write_baseline):
            check_folder(path)


def emit_report(advice: Advice, options: ReportOptions) -> int:
    """Write the report, and return the exit code: 0 clean, 1 findings, 2 if nothing could be analysed."""
    # The renderers of all formats take longer to import than most other commands' reports take to make.
    from frx_graph.reports.advice.render import render

    root = find_checkout_root(Path.cwd())
    selection = parse_selection(options.select, options.ignore, _list_known_rules())
    shown = apply_suppressions(apply_selection(advice, selection))
    if options.write_baseline is not None:
        write_baseline(options.write_baseline, build_baseline(shown, root))
    if options.baseline is not None:
        shown = filter_new(shown, read_baseline(options.baseline), root)
    terminal = detect_terminal(sys.stdout, os.environ)
    color = terminal.color and options.output is None
    text = render(shown, options.format, top=options.top, width=terminal.width, color=color)
    if options.output is not None:
        write_output(options.output, text)
    elif options.format is Format.TEXT:
        print_report(text, color=color)
    else:
        typer.echo(text, nl=not text.endswith("\n"))
    match classify_outcome(shown):
        case Outcome.FINDINGS:
            return 0 if options.exit_zero else 1
        case Outcome.NOTHING_ANALYSED:
            return 2
        case _:
            return 0


def _list_known_rules() -> dict[str, str]:
    return {card.code: card.name for card in load_all_cards()}
