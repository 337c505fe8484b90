"""The lines about a search, and what a report gets of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pretended_search import SIGNATURE, PretendedSearch

from frx_graph.advice import AutopilotSearch, TriedCandidate
from frx_graph.autopilot import search_log
from frx_graph.autopilot.search_log import SearchLog
from frx_graph.compiler.plans import make_recorded_plan
from frx_graph.errors import TrialError
from frx_graph.measure.machine.busy_programs import BusyProgram, MachineLoad
from frx_graph.records import Candidate
from frx_graph.trials.verdict import Outcome, Verdict

HOIST = Candidate("hoist_copy", "a" * 16, ("clone",))
LAYOUT = Candidate("propagate_layout", "a" * 16, ("conv",), ("0,2,3,1",), 2e-3)
BOTH = ("hoist_copy", "propagate_layout")
LOGGER = logging.getLogger("frx_graph.autopilot.search_log")


class Collecting(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def lines() -> Iterator[list[str]]:
    handler, level = Collecting(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield handler.lines
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


class Clock:
    """Seven seconds pass from one look to the next."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 7.0
        return self.now


def search(world: PretendedSearch, rejected: frozenset[str] = frozenset()) -> AutopilotSearch | None:
    log = SearchLog(SIGNATURE, 100, Clock())
    with log:
        world.try_graph(rejected, log=log)
    return log.make_summary()


def test_busy_machine_is_logged_before_the_first_trial(lines: list[str]) -> None:
    programs = (BusyProgram(4711, "cc1plus", 1.5),)
    busy = MachineLoad(0.5, 2, 0.75, False, 3.2, None, programs)
    world = PretendedSearch((HOIST,), load=busy)
    world.ratios = {("hoist_copy",): 1.2}
    search(world)
    assert lines[2].startswith(f"graph {SIGNATURE}: the machine is busy: cc1plus (pid 4711) uses 1.5 of 2 processors")
    assert "may leave candidates untried" in lines[2]
    assert "hoist_copy: 20.0 % faster" in lines[3]


def test_each_trial_has_a_line_and_the_report_has_the_same(lines: list[str]) -> None:
    world = PretendedSearch((HOIST, LAYOUT))
    world.ratios = {("hoist_copy",): 1.2, ("propagate_layout",): 1.283, BOTH: 0.9}
    found = search(world)
    assert lines == [
        f"graph {SIGNATURE}: asking for candidates, and trying them, for at most 100 s; this call waits",
        f"trying 2 candidates on graph {SIGNATURE}, for at most 100 s: propagate_layout, hoist_copy",
        "candidate 1 of 2, propagate_layout: 28.3 % faster, promoted",
        "candidate 2 of 2, hoist_copy: 20.0 % faster, promoted",
        "together, propagate_layout and hoist_copy: 10.0 % slower, rejected",
        f"graph {SIGNATURE}: done after 7 s: 2 of 3 promoted, propagate_layout is the fastest; "
        "frx_graph.report() has the rest",
    ]
    assert found == AutopilotSearch(
        SIGNATURE,
        SIGNATURE,
        7.0,
        (
            TriedCandidate("propagate_layout", "promoted", "a test", 1.283),
            TriedCandidate("hoist_copy", "promoted", "a test", 1.2),
            TriedCandidate("propagate_layout and hoist_copy", "rejected", "a test", 0.9),
        ),
        "propagate_layout",
        "all was tried that measured times favour, or that may matter",
    )


def test_a_search_without_candidates_says_why(lines: list[str]) -> None:
    found = search(PretendedSearch(()))
    why = "measured times favour no rewrite, and no other way to compile it may matter"
    assert lines[1:] == [f"graph {SIGNATURE}: done after 7 s: {why}, it is compiled as without frx"]
    assert found == AutopilotSearch(SIGNATURE, SIGNATURE, 7.0, (), None, why)


def test_what_was_rejected_before_is_named(lines: list[str]) -> None:
    world = PretendedSearch((HOIST, LAYOUT))
    world.ratios = {("hoist_copy",): 0.9}
    search(world, frozenset({make_recorded_plan((LAYOUT,)).hash}))
    assert lines[2] == "candidate 1 of 2, propagate_layout: not tried, it was rejected before"
    assert "0 of 1 promoted, it is compiled as without frx" in lines[-1]


def test_a_trial_without_measurements_has_its_reason(lines: list[str]) -> None:
    log = SearchLog(SIGNATURE, 100)
    log.start(["eager"], 90)
    log.note_trial("eager", Verdict(Outcome.REJECT, "numerics: 3 of 12 results differ", None, early=True), None)
    log.note_trial("eager", Verdict(Outcome.EQUIVALENT, "it is the same", None, early=True), None)
    assert lines == [
        f"trying 1 candidate on graph {SIGNATURE}, for at most 90 s: eager",
        "candidate 1 of 1, eager: rejected, numerics: 3 of 12 results differ",
        "candidate 1 of 1, eager: no difference that matters, it is the same",
    ]


def test_a_budget_that_ends_before_all_was_tried_is_named(lines: list[str]) -> None:
    world = PretendedSearch((HOIST, LAYOUT, Candidate("onednn_products", "a" * 16, ("addmm",), ("dot",), 1e-4)))
    world.ratios, world.slow = {("propagate_layout",): 1.2}, ("onednn_products",)
    search(world)
    assert lines[-1].startswith(
        f"graph {SIGNATURE}: done after 7 s, the time budget ended before all was tried: 1 of 1 promoted, "
    )


@pytest.mark.parametrize(
    ("error", "end"),
    [(TrialError("the program does not run"), "the program does not run"), (KeyboardInterrupt(), "interrupted")],
)
def test_an_error_ends_the_search_and_goes_on(error: BaseException, end: str, lines: list[str]) -> None:
    log = SearchLog(SIGNATURE, 100, Clock())
    with pytest.raises(type(error)), log:
        raise error
    assert lines[-1] == f"graph {SIGNATURE}: stopped after 7 s: {end}"
    found = log.make_summary()
    assert found is not None
    assert found.end == end


def test_stages_are_for_debugging(lines: list[str]) -> None:
    log = SearchLog(SIGNATURE, 100)
    log.note_stage("eager: comparing their results")
    assert lines == []
    LOGGER.setLevel(logging.DEBUG)
    log.note_stage("eager: comparing their results")
    assert lines == [f"graph {SIGNATURE}: eager: comparing their results"]


def test_only_the_first_rank_writes_lines(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_log, "is_first_rank", lambda: False)
    world = PretendedSearch((LAYOUT,))
    world.ratios = {("propagate_layout",): 1.2}
    found = search(world)
    assert lines == []
    assert found is not None
    assert found.fastest == "propagate_layout"


def test_a_baseline_that_departs_from_eager_is_said_once(lines: list[str]) -> None:
    log = SearchLog(SIGNATURE, 100, Clock())
    for text in ("", "Inductor alone computes something else than eager", "Inductor alone computes something else"):
        log.note_departure(text)
    assert [line for line in lines if "else than eager" in line or "something else" in line] == lines[-1:]
    assert lines[-1].endswith(": Inductor alone computes something else than eager")
