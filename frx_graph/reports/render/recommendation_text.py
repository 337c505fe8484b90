"""Render advice cards for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from frx_graph.reports.render.recommendation_part import RecommendationPart, ValidationPart
from frx_graph.reports.render.text_console import INDENT, print_command, print_title, print_wrapped
from frx_graph.rules.recommendation_card import OF_TRACES, Direction

ARROWS = {Direction.DECREASE: "<--", Direction.INCREASE: "-->", Direction.STABLE: "---"}
"""The direction in which a metric moves if a change helped."""
_STEPS_SHOWN = 3
_TIERS = ("Tier 0, a setting", "Tier 1, the code", "Tier 2, the algorithm")


def print_recommendations(console: Console, found: Sequence[RecommendationPart], top: int) -> None:
    """Print the first `top` cards in full, and the number of others. Prints nothing without cards."""
    if not found:
        return
    print_title(console, "RECOMMENDATIONS")
    print_bounds(console, found[:top])
    for number, recommendation in enumerate(found[:top], start=1):
        _print_recommendation(console, number, recommendation)
    if len(found) > top:
        console.print(Text(f"{len(found) - top} more: --top {len(found)}"))


def print_bounds(console: Console, found: Sequence[RecommendationPart]) -> None:
    """Print the bound on what removing each label gains, once for all its cards. Bounds for kernels are left out."""
    bounds = {one.triggered_by[0]: one.estimated_speedup_pct_max for one in found if not one.kernels}
    for label, most in bounds.items():
        if most is not None:
            print_wrapped(console, f"Without {label}, steps are at most {most:.0f} % faster (a bound, not a forecast)")


def print_next_steps(
    console: Console, found: Sequence[RecommendationPart], what: str, command: str | None = None
) -> None:
    """Print what to do now, a line each: the first cards by title, and to record `what` again, with the `command` that
    does it. Prints nothing without cards."""
    if not found:
        return
    print_title(console, "NEXT STEPS")
    for number, one in enumerate(found[:_STEPS_SHOWN], start=1):
        print_wrapped(console, f"{number}. {one.title} ({one.effort})")
    number = min(len(found), _STEPS_SHOWN) + 1
    print_wrapped(console, f"{number}. Record {what} again, and see what changed: frx compare BEFORE AFTER")
    if command is not None:
        print_command(console, command)


def _print_recommendation(console: Console, number: int, found: RecommendationPart) -> None:
    """Print one card: the reason, the steps, and the check that they helped."""
    head = f"{number}. [{found.priority.upper()}] {found.title}"
    console.print(Text(head, "bold"))
    most = found.estimated_speedup_pct_max if found.kernels else None
    bound = "" if most is None else f" | at most {most:.0f} % faster (a bound, not a forecast)"
    said = f"{_TIERS[found.tier]} | Effort: {found.effort} | Risk: {found.risk} | Score: {found.score:.2f}{bound}"
    print_wrapped(console, said)
    print_wrapped(console, f"Why: {found.why}")
    for action in found.actions:
        print_wrapped(console, f"- {action}")
    console.print(Text(f"{INDENT}Validate:"))
    for command in _yield_commands(found):
        print_command(console, command)
    for step in found.validation_steps:
        print_wrapped(console, format_step(step), INDENT * 2)
    for risk in found.risks:
        print_wrapped(console, f"Mind: {risk}")
    print_wrapped(console, f"Triggered by {', '.join(found.triggered_by)} ({found.id})")


def _yield_commands(found: RecommendationPart) -> Iterator[str]:
    counters = [step.metric for step in found.validation_steps if "__" in step.metric]
    if counters:
        yield f"ncu --metrics {','.join(counters)} --csv ./your_app"
    others = [step.metric for step in found.validation_steps if "__" not in step.metric]
    if any(metric.startswith(OF_TRACES) for metric in others):
        yield "frx analyze profile.json.gz"
    if any(not metric.startswith(OF_TRACES) for metric in others):
        yield "ptxas -v your_kernel.ptx"


def format_step(step: ValidationPart) -> str:
    """Return the direction in which a metric moves if the change helped, and its earlier value."""
    was = "" if step.current_value is None else f"was {step.current_value:.4g}; "
    target = "" if step.threshold_good is None else f" (target: {step.threshold_good:g})"
    return f"{ARROWS[step.direction]} {step.label}: {was}{step.expected}{target}"
