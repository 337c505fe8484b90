"""Tuning result: the JSON document `frx_tune_v1`, and the report for a terminal and as Markdown.

Unknown is null. Within v1 fields may be added, but none is removed or changes its meaning.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import ConfigDict, Field
from rich.text import Text

from frx_graph.reports.render.document import Part
from frx_graph.reports.render.quantities import UNKNOWN, format_count, format_frequency
from frx_graph.reports.render.text_console import make_console
from frx_graph.support.plain_text import clean_line, format_bytes
from frx_graph.trials.configuration_trial import ConfigurationTrial, Fate, Kind, RunSeen

Status = Literal["running", "complete", "interrupted", "failed"]


class _DocumentedPart(Part):
    model_config = ConfigDict(use_attribute_docstrings=True)


class RulePart(_DocumentedPart):
    """Criteria for a configuration."""

    minimum_speedup: float
    alpha: float
    """One-sided error rate of one candidate. It bounds the family's over all candidates."""
    candidates: int
    """Divisor of alpha: the number of possible candidates, plus the final trial."""
    process_pairs: int
    quads_per_pair: int
    steps_per_block: int


class WinnerPart(_DocumentedPart):
    """The recommendation, with its measured gain over the original program."""

    label: str
    environment: dict[str, str]
    """The variables to set, in addition to those already set."""
    speedup: float
    """0.19: 19 % more steps in the same time, or more samples if batch sizes differ."""
    speedup_low: float | None
    """Exceeded with a probability of at least 1 - alpha."""
    by_sample: bool
    steps_per_second: float | None
    step_ms: float | None
    """Measured in a separate run of the whole program."""


class TuneDocument(_DocumentedPart):
    """One tune."""

    schema_: Literal["frx_tune_v1"] = Field(default="frx_tune_v1", alias="schema")
    id: str
    job: str
    command: tuple[str, ...]
    status: Status
    frx_version: str
    settings: dict[str, Any]
    """The flags, by name."""
    rule: RulePart | None
    baseline: RunSeen | None
    """Null if the tune did not get so far."""
    trials: tuple[ConfigurationTrial, ...]
    """In order of creation; refused candidates included."""
    left_out: tuple[str, ...]
    """Families and candidates that were not considered, each with the reason."""
    winner: WinnerPart | None
    applied: Literal[False] = False
    """Always false: frx only recommends."""


def find_winner(trials: tuple[ConfigurationTrial, ...]) -> WinnerPart | None:
    """From the final trial, if it was promoted."""
    final = next((t for t in trials if t.kind is Kind.FINAL and t.fate is Fate.PROMOTE), None)
    if final is None or final.gain is None:
        return None
    step = final.seen.seconds_per_step if final.seen is not None else None
    return WinnerPart(
        label=final.configuration.label,
        environment=dict(final.configuration.variables),
        speedup=final.gain.ratio - 1,
        speedup_low=None if final.gain.low is None else final.gain.low - 1,
        by_sample=final.by_sample,
        steps_per_second=1 / step if step else None,
        step_ms=1e3 * step if step else None,
    )


_RULE = "─" * 58
_NAME = 30
_MARKS = {
    Fate.PROMOTE: ("✓", "green"),
    Fate.REJECT: ("✗ rejected", "red"),
    Fate.EQUIVALENT: ("= no difference that matters", ""),
    Fate.INCONCLUSIVE: ("? inconclusive", "yellow"),
    Fate.REFUSED: ("- not run", "dim"),
    Fate.RACED: ("promoted to full benchmark", ""),
    Fate.SCREENED: ("screened out by quicker candidates", "dim"),
}
_KINDS = {Kind.FINAL: " [FINAL]", Kind.FULL: "", Kind.RACE: " [RACE]"}
"""In the order in which they are shown."""


def render_tune(document: TuneDocument, *, width: int, color: bool) -> str:
    """Render the baseline, every trial with the reason for its outcome, the winner, and the variables to set."""
    out, console = make_console(width, color, soft_wrap=True)

    def print_line(text: str, style: str = "") -> None:
        console.print(Text(text, style))

    print_line(_RULE)
    print_line("frx autopilot — Tune Report", "bold")
    print_line(f"Job : {clean_line(document.job)}")
    tried = sum(trial.kind is not Kind.FINAL and trial.fate is not Fate.REFUSED for trial in document.trials)
    unfinished = "" if document.status == "complete" else f" ({document.status}: what is known so far)"
    print_line(f"Trials : {tried} trials + baseline{unfinished}")
    print_line(_RULE)
    print_line("BASELINE", "bold")
    for text in _yield_baseline_lines(document.baseline):
        print_line(f"  {text}")
    if document.trials:
        print_line("TRIAL RESULTS", "bold")
    for trial in sorted(document.trials, key=_get_sort_key):
        label = f"{clean_line(trial.configuration.label)}{_KINDS[trial.kind]}"
        gain = "" if trial.gain is None else f"{100 * (trial.gain.ratio - 1):+.1f}%"
        console.print(Text.assemble(f"  {label:<{_NAME}} {gain:>8}  ", _MARKS[trial.fate]))
        if (trial.reason and trial.kind is not Kind.RACE) or trial.fate is Fate.REJECT:
            for text in textwrap.wrap(clean_line(trial.reason, 400), width - 6):
                print_line(f"      {text}", "dim")
    for text in document.left_out:
        print_line(f"  not tried: {clean_line(text)}", "dim")
    print_line("WINNER", "bold")
    for text in yield_winner_lines(document):
        print_line(f"  {text}")
    if document.winner is not None:
        print_line("ENV VARS TO APPLY", "bold")
        for name, value in document.winner.environment.items():
            print_line(f"  {clean_line(name)}={clean_line(value)}")
        print_line("Applied: No — recommendation only")
        print_line("To apply: set the env vars above before launching your workload.")
    return out.getvalue()


def yield_winner_lines(document: TuneDocument) -> Iterator[str]:
    """Yield the recommendation, or the reason why there is none."""
    winner = document.winner
    if winner is None:
        yield f"none: {_explain_no_winner(document)}"
        return
    final = next(trial for trial in document.trials if trial.kind is Kind.FINAL)
    of = "samples" if winner.by_sample else "steps"
    yield f"Config : {clean_line(winner.label)}"
    yield f"Throughput : {100 * winner.speedup:+.1f}% {of} per second vs baseline"
    if final.gain is not None and final.gain.low is not None:
        high = "?" if final.gain.high is None else f"{100 * (final.gain.high - 1):+.1f}"
        yield f"Surely between {100 * (final.gain.low - 1):+.1f} and {high}%, in {final.gain.processes} process pairs"
    yield f"Avg step : {_format_milliseconds(winner.step_ms)} in a separate run"


def _explain_no_winner(document: TuneDocument) -> str:
    if document.status != "complete":
        return f"the tune is {document.status}"
    final = next((trial for trial in document.trials if trial.kind is Kind.FINAL), None)
    if final is not None:
        return f"the result was not confirmed: {clean_line(final.reason, 300)}"
    unclear = sum(trial.fate is Fate.INCONCLUSIVE for trial in document.trials)
    more = f"; {format_count(unclear, 'trial')} could not tell: --measure-steps shows more, a quieter machine too"
    return f"no candidate was shown to be faster by enough{more if unclear else ''}"


def _yield_baseline_lines(seen: RunSeen | None) -> Iterator[str]:
    if seen is None:
        yield "not measured"
        return
    step = seen.seconds_per_step
    yield f"Throughput : {format_frequency(1 / step, 'steps/sec') if step else UNKNOWN}"
    yield f"Avg step : {_format_milliseconds(None if step is None else 1e3 * step)}, batch to batch"
    yield f"Memory : {UNKNOWN if seen.peak_bytes is None else format_bytes(seen.peak_bytes)}"
    yield f"GPU util : {UNKNOWN if seen.device_busy_percent is None else f'{seen.device_busy_percent:.1f}%'}"
    yield f"Dominant stall: {clean_line(seen.bottleneck or UNKNOWN)}"


def _format_milliseconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f} ms"


def _get_sort_key(trial: ConfigurationTrial) -> tuple[int, float]:
    place = list(_KINDS).index(trial.kind) + 2 * (trial.fate is Fate.REFUSED)
    return place, 0.0 if trial.gain is None else -trial.gain.ratio


def render_markdown_report(document: TuneDocument) -> str:
    """Return `report.md`: the terminal's text without colour, for reading in a repository."""
    text = render_tune(document, width=100, color=False)
    command = " ".join(clean_line(word) for word in document.command)
    return f"# frx tune {clean_line(document.id)}\n\n    {command}\n\n```text\n{text.replace('```', '` ` `')}```\n"
