"""What the autopilot did, as tables of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from autopilot_results import CaseResult, GraphResult, Summary, Tried
from versus_results import Verdict

WIDTH = 80
_NAME_WIDTH = 22
_ROW = "  {:<22} {:>10} {:>9} {:>10} {:>6}  {}"
_WORDS = {True: "holds", False: "broken", None: "not measured"}
_AGAIN = {True: "yes", False: "no", None: "?"}


def print_results(
    cases: Sequence[CaseResult], figures: Summary, judged: Sequence[Verdict], minimum_speedup: float
) -> None:
    """All of it."""
    for case in cases:
        print("\n".join(_case(case, minimum_speedup)))
    print()
    for line in summary_lines(figures):
        print(textwrap.fill(line, WIDTH, subsequent_indent="  "))
    print("\nBounds")
    for verdict in judged:
        figure = "" if verdict.figure is None else f": {verdict.figure:.3f}"
        text = f"{_WORDS[verdict.holds]:>12}  {verdict.bound}{figure} ({verdict.about})"
        print(textwrap.fill(text, WIDTH, subsequent_indent=" " * 14))


def _case(case: CaseResult, minimum_speedup: float) -> Iterator[str]:
    yield ""
    yield f"{case.title}, {case.seconds:.0f} s"
    for problem in case.problems:
        yield textwrap.fill(problem, WIDTH, initial_indent="  ! ", subsequent_indent="    ", max_lines=4)
    for graph in case.graphs:
        yield from _graph(graph, minimum_speedup)


def _graph(graph: GraphResult, minimum_speedup: float) -> Iterator[str]:
    step = next((one.trial.baseline_seconds for one in graph.tried if one.trial.baseline_seconds is not None), None)
    yield f"  graph {graph.signature}{'' if step is None else f', a step {1e3 * step:.2f} ms'}"
    if graph.problem is not None:
        yield textwrap.fill(graph.problem, WIDTH, initial_indent="  ", subsequent_indent="    ", max_lines=3)
    if not graph.tried:
        return
    yield _ROW.format("tried, ms saved:", "predicted", "measured", "replicated", "ratio", "verdict")
    for one in graph.tried:
        yield _ROW.format(*row(one, minimum_speedup))
    for one in graph.tried:
        if one.trial.failed or not one.trial.complete:
            text = f"{' + '.join(one.names)}: {one.trial.reason}"
            yield textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ", max_lines=2)
    final = graph.final_tried
    applied = "the baseline" if final is None else " + ".join(final.names)
    over = "unknown" if graph.over_best is None else f"{graph.over_best:.3f}"
    text = f"applied: {applied}; over the best single candidate: {over}"
    yield textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def row(one: Tried, minimum_speedup: float) -> list[str]:
    """Savings in milliseconds, the ratio of times, and the verdict with whether it holds."""
    name, again = " + ".join(one.names), one.again
    held = f", {_AGAIN[one.replicated(minimum_speedup)]}" if one.promoted else ""
    return [
        name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 3]}...",
        milliseconds(one.predicted_seconds),
        milliseconds(one.trial.saved_seconds),
        milliseconds(None if again is None else again.saved_seconds),
        "-" if one.trial.ratio is None else f"{one.trial.ratio:.3f}",
        f"{one.trial.outcome}{held}",
    ]


def summary_lines(figures: Summary) -> Iterator[str]:
    """The figures, with how many trials each rests on."""
    yield (
        f"{figures.trials} trials, {figures.failed} of them ended by a gate, {figures.incomplete} cut short. "
        "Savings in ms a step."
    )
    count = f"of {figures.compared} trials"
    yield (
        f"Spearman's rho, predicted and measured savings {count}: {_number(figures.rho_seconds)} (in ms), "
        f"{_number(figures.rho_percent)} (in % of the step)"
    )
    yield (
        f"Mean error of predictions: {milliseconds(figures.error_seconds)} ms, "
        f"{_number(figures.error_percent)} % of the step; mean of predicted minus measured: "
        f"{milliseconds(figures.bias_seconds)} ms, {_number(figures.bias_percent)} % of the step"
    )
    if figures.unpriced:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(figures.unpriced.items()))
        yield f"No prediction for: {listed}"


def milliseconds(seconds: float | None) -> str:
    """`-` for what is unknown."""
    return "-" if seconds is None else f"{1e3 * seconds:.3f}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
