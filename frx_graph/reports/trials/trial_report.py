"""Render trials for a terminal: one in full, or several in a few lines each."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from frx_graph.reports.render.quantities import format_count, format_prediction
from frx_graph.reports.render.text_console import INDENT, make_console, print_title
from frx_graph.reports.trials.trial_document import GatePart, MatrixEntry, QuadPart, TrialDocument, TrialMatrixDocument
from frx_graph.support.plain_text import clean_line
from frx_graph.trials.allocation_check import DESCRIPTIONS, NAMES

STYLES = {"promote": "bold green", "reject": "bold red", "equivalent": "bold", "inconclusive": "bold yellow"}
"""Colours of verdicts."""
_MARKS = {True: ("passed", "green"), False: ("failed", "bold red"), None: ("-", "dim")}
_NAME = 13
_PASSED = 8


def render_trial(document: TrialDocument, *, width: int, color: bool, samples: bool = False, advice: str = "") -> str:
    """Render the verdict, the candidate, each gate with its result, the recorded decision, and `advice`, if any; with
    `samples`, the ratio of each quad, too."""
    out, console = make_console(width, color, soft_wrap=True)
    console.print(Text.assemble((document.verdict, STYLES[document.verdict]), f"  {clean_line(document.target, 200)}"))
    _print_broken(console, clean_line(document.reason, 1000))
    print_title(console, "Candidate")
    for candidate in document.arms[-1].candidates:
        predicted = format_prediction(candidate)
        count = len(candidate.nodes)
        of = f"{count} operator{'s' * (count != 1)}" if count else ", ".join(candidate.choices) or "the whole graph"
        console.print(Text(f"    {candidate.rewrite}: {clean_line(of, 100)}{predicted and f', {predicted}'}"))
    if not document.arms[-1].candidates:
        console.print(Text("    the baseline itself"))
    if document.gates:
        print_title(console, "Gates")
    _print_gates(console, document.gates, max(20, width - 4 - _NAME - _PASSED))
    if document.stats is not None:
        stats = document.stats
        medians = ", ".join(f"{median:.3f}" for median in stats.pair_medians)
        print_title(console, "Measured")
        loaded = sum(any(block.ignored for block in quad.blocks) for quad in document.samples if not quad.void)
        under = f", {loaded} that count all the same (--ignore-load)" if loaded else ""
        if document.environment is not None and document.check is not None:
            _print_broken(console, f"with {DESCRIPTIONS[document.environment.setup.allocation]}")
        counted = f"{stats.quads} rounds in {stats.processes} process pairs, {stats.void} disturbed{under}"
        _print_broken(console, counted)
        _print_broken(console, f"ratio {stats.ratio_median:.3f} of baseline over candidate; by pair {medians}")
        blocks = [block for quad in document.samples if not quad.void for block in quad.blocks]
        steps = []
        for arm in document.arms:
            median = statistics.median(
                seconds for block in blocks if block.arm == arm.name for seconds in block.seconds
            )
            steps.append(f"{arm.name} {median * 1e3:.3g} ms")
        console.print(Text(f"    median step: {', '.join(steps)}"))
        if samples:
            _print_samples(console, document.samples)
        if (check := document.check) is not None and check.ratio_median is not None:
            checked = ", ".join(f"{median:.3f}" for median in check.pair_medians)
            _print_broken(console, f"with {NAMES[check.allocation]} {check.ratio_median:.3f}; by pair {checked}")
    if document.place is not None:
        host = "" if document.environment is None else f" ({clean_line(document.environment.host)})"
        console.print()
        console.print(Text(f"Ran on node {clean_line(document.place.address)}{host}, attempt {document.place.attempt}"))
        for lost in document.place.lost:
            _print_broken(console, f"lost before, and not counted: {clean_line(lost, 1000)}")
    console.print()
    _print_broken(console, clean_line(document.decision, 1000), "")
    if advice:
        _print_broken(console, f"Next: {advice}", "")
    return out.getvalue()


def _print_samples(console: Console, samples: Sequence[QuadPart]) -> None:
    """Print the ratios of each process pair's quads, and the reasons why some are void."""
    for pair in sorted({quad.pair for quad in samples}):
        own = [quad for quad in samples if quad.pair == pair]
        ratios = " ".join(
            f"({math.exp(quad.log_ratio):.3f})" if quad.void else f"{math.exp(quad.log_ratio):.3f}" for quad in own
        )
        _print_broken(console, f"pair {pair + 1}: {ratios}")
    if causes := Counter(
        block.disturbance for quad in samples if quad.void for block in quad.blocks if block.disturbance is not None
    ):
        said = "; ".join(
            f"{clean_line(cause, 200)} ({format_count(count, 'block')})" for cause, count in causes.most_common(3)
        )
        _print_broken(console, f"in brackets, disturbed: {said}")


def _print_gates(console: Console, gates: Sequence[GatePart], room: int) -> None:
    """Print one line for each gate; `room` is the width of the text."""
    shortened = False
    for gate in gates:
        word, style = _MARKS[gate.passed]
        text = clean_line(gate.summary or gate.detail, room)
        console.print(Text.assemble(f"    {gate.name:<{_NAME}}", (f"{word:<{_PASSED}}", style), text))
        shortened = shortened or text != gate.detail
    if shortened:
        console.print(Text("    --json has each gate in full", "dim"))


_WORD = 14


def render_matrix(document: TrialMatrixDocument, *, width: int, color: bool) -> str:
    """Render the verdict, the candidate, the gain, the node, and the recorded decision."""
    out, console = make_console(width, color, soft_wrap=True)
    for entry in document.trials:
        verdict = "error" if entry.trial is None else entry.trial.verdict
        named = (entry.target, format_shape(entry.shape), entry.dtype, entry.candidate)
        of = clean_line(" ".join(filter(None, named)), 200)
        console.print(Text.assemble((f"{verdict:<{_WORD}}", STYLES.get(verdict, "bold red")), of))
        for told in _list_details(entry):
            _print_broken(console, clean_line(told, 1000), " " * _WORD)
    return out.getvalue()


def format_shape(shape: Mapping[str, int]) -> str:
    """Format sizes as `--shape` takes them."""
    return ",".join(f"{name}={size}" for name, size in shape.items())


def _list_details(entry: MatrixEntry) -> list[str]:
    trial = entry.trial
    if trial is None:
        return [entry.error or ""]
    found = []
    if trial.stats is not None:
        found.append(f"ratio {trial.stats.ratio_median:.3f} of baseline over candidate")
    found.append(trial.reason)
    if trial.place is not None:
        found.append(f"on node {trial.place.address}, attempt {trial.place.attempt}")
        found += [f"lost before, and not counted: {lost}" for lost in trial.place.lost]
    return [*found, trial.decision]


def _print_broken(console: Console, text: str, indent: str = INDENT) -> None:
    """Print lines wrapped to the console's width; longer paths are broken."""
    for line in textwrap.wrap(text, console.width - len(indent), break_on_hyphens=False):
        console.print(Text(f"{indent}{line}"))
