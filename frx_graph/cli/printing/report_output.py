"""Filter, render and write an advice, and turn it into an exit code."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from frx_graph.advice import Advice
from frx_graph.cli.printing.output import check_folder, print_notice, print_report, write_output
from frx_graph.errors import OptionError
from frx_graph.reports.advice.baseline import build_baseline, filter_new, read_baseline, write_baseline
from frx_graph.reports.advice.fingerprint import Identity
from frx_graph.reports.advice.shown_findings import choose_findings, parse_rules
from frx_graph.reports.advice.terminal import Format, detect_terminal
from frx_graph.reports.advice.wording import Outcome, classify_outcome
from frx_graph.reports.render.quantities import format_count
from frx_graph.reports.render.source_path import find_checkout_root


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
        parse_rules(self.select, self.ignore)
        if self.baseline is not None:
            read_baseline(self.baseline)
        for path in (self.output, self.write_baseline):
            check_folder(path)


def check_several(options: ReportOptions) -> None:
    """Raise `OptionError` for a format that holds one target only."""
    if options.format is Format.HTML:
        raise OptionError("an HTML page is about one target", "name one target, or --format md")


def emit_report(advice: Advice, options: ReportOptions) -> int:
    """Write the report, and return the exit code: 0 clean, 1 findings, 2 if nothing could be analysed."""
    # The renderers of all formats take longer to import than most other commands' reports take to make.
    from frx_graph.reports.advice.render import render

    (shown,) = _select_findings([advice], options)
    terminal = detect_terminal(sys.stdout, os.environ)
    color = terminal.color and options.output is None
    _write(render(shown, options.format, top=options.top, width=terminal.width, color=color), options, color=color)
    return _get_exit_code(shown, options)


def emit_reports(advices: Sequence[Advice], options: ReportOptions) -> int:
    """Write the reports of several targets as one, and return the highest exit code of one of them."""
    from frx_graph.reports.advice.render import render_several

    shown = _select_findings(advices, options)
    terminal = detect_terminal(sys.stdout, os.environ)
    color = terminal.color and options.output is None
    text = render_several(shown, options.format, top=options.top, width=terminal.width, color=color)
    _write(text, options, color=color)
    return max(_get_exit_code(one, options) for one in shown)


def _select_findings(advices: Sequence[Advice], options: ReportOptions) -> list[Advice]:
    """Return the advice without findings that were not asked for, are suppressed or known; write the baseline."""
    root = find_checkout_root(Path.cwd())
    shown = [choose_findings(advice, options.select, options.ignore) for advice in advices]
    if options.write_baseline is not None:
        # Targets may share code, and each is compared with the baseline by itself.
        known: Counter[Identity] = Counter()
        for one in shown:
            known |= Counter(build_baseline(one, root))
        write_baseline(options.write_baseline, known)
        print_notice(f"frx: wrote {format_count(known.total(), 'finding')} to {options.write_baseline}")
    if options.baseline is not None:
        baseline = read_baseline(options.baseline)
        shown = [filter_new(one, baseline, root) for one in shown]
    return shown


def _write(text: str, options: ReportOptions, *, color: bool) -> None:
    if options.output is not None:
        write_output(options.output, text)
    elif options.format is Format.TEXT:
        print_report(text, color=color)
    else:
        typer.echo(text, nl=not text.endswith("\n"))


def _get_exit_code(shown: Advice, options: ReportOptions) -> int:
    match classify_outcome(shown):
        case Outcome.FINDINGS:
            return 0 if options.exit_zero else 1
        case Outcome.NOTHING_ANALYSED:
            return 2
        case _:
            return 0
