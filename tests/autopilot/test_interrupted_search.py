"""A search for a plan that ends anywhere, by an error, Ctrl-C or SIGKILL: what it has proved is applied, and the next
process goes on with what it has not tried."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from pretended_search import HERE, SIGNATURE, PretendedSearch, Rewrites

from frx_graph.errors import LedgerError
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Decision, Kind, RecordedEvent
from frx_graph.ledger.fast_path import append_decisions
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.store import Ledger
from frx_graph.ledger.verification import verify
from frx_graph.promotion.history import find_rejected, is_settled
from frx_graph.promotion.promoted_plan import Subject
from frx_graph.records import Candidate
from frx_graph.trials.environment import read_trial_setup
from frx_graph.trials.policy import TrialPolicy

HOIST = Candidate("hoist_copy", "a" * 16, ("clone",), (), 1e-3)
LAYOUT = Candidate("propagate_layout", "a" * 16, ("conv",), ("0,2,3,1",), 2e-3)
PRODUCTS = Candidate("onednn_products", "a" * 16, ("addmm",), ("dot",), 1e-4)
ALONE = ("propagate_layout", "hoist_copy", "onednn_products")
"""In the order in which they are tried."""
RATIOS: dict[str, dict[Rewrites, float]] = {
    "none": dict.fromkeys([(name,) for name in ALONE], 0.9),
    "the first": {("propagate_layout",): 1.2, ("hoist_copy",): 0.9, ("onednn_products",): 0.9},
    "the last": {("propagate_layout",): 0.9, ("hoist_copy",): 0.9, ("onednn_products",): 1.2},
    "the combination": {
        ("propagate_layout",): 1.2,
        ("hoist_copy",): 1.3,
        ("onednn_products",): 0.9,
        ("hoist_copy", "propagate_layout"): 1.4,
    },
    "not the combination": {
        ("propagate_layout",): 1.2,
        ("hoist_copy",): 1.3,
        ("onednn_products",): 1.1,
        ("hoist_copy", "propagate_layout", "onednn_products"): 1.25,
    },
}
MOMENTS = 40
"""More than any search has."""
SETUP = read_trial_setup(torch.device("cpu"))
POLICY = TrialPolicy()


class Interrupted(BaseException):
    """What nobody expects."""


def raising() -> None:
    raise Interrupted


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def searching(ratios: dict[Rewrites, float]) -> PretendedSearch:
    return PretendedSearch((HOIST, LAYOUT, PRODUCTS), ratios=ratios, policy=POLICY)


def ending(moment: int, how: Callable[[], None]) -> Callable[[], None]:
    """Ends a search at this moment of all that it has."""
    passed = iter(range(MOMENTS))

    def at() -> None:
        if next(passed) == moment:
            how()

    return at


def run(search: PretendedSearch, subject: Subject) -> None:
    search.try_graph(find_rejected(subject), record=lambda decisions: append_decisions(subject.place, decisions))


def interrupted(search: PretendedSearch, subject: Subject) -> bool:
    try:
        run(search, subject)
    except Interrupted:
        return True
    return False


def killed(search: PretendedSearch, subject: Subject) -> bool:
    """In a process of its own."""
    process = os.fork()
    if process == 0:
        try:
            interrupted(search, subject)
        finally:
            os._exit(0)
    _, status = os.waitpid(process, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def rewrites_of(decision: Decision) -> Rewrites:
    return tuple(candidate.rewrite for candidate in decision.candidates)


def trials_of(ledger: Ledger) -> list[Rewrites]:
    return [rewrites_of(event.decision) for event in ledger.read_events() if event.decision.kind is Kind.TRIED]


@pytest.mark.integration
@pytest.mark.parametrize("ratios", RATIOS.values(), ids=RATIOS)
@pytest.mark.parametrize(("end", "how"), [(interrupted, raising), (killed, kill)], ids=["raises", "SIGKILL"])
def test_interrupted_search_keeps_proven_plans_and_tries_the_rest(
    tmp_path: Path,
    ratios: dict[Rewrites, float],
    end: Callable[[PretendedSearch, Subject], bool],
    how: Callable[[], None],
) -> None:
    stood: set[Rewrites] = set()
    for moment in range(MOMENTS):
        place = parse_location(str(tmp_path / f"{moment}.sqlite3"))
        subject = Subject(place, SIGNATURE, HERE, SETUP, POLICY)
        ledger = open_ledger(place)
        search = searching(ratios)
        search.at = ending(moment, how)
        if not end(search, subject):
            break
        proved = {rewrites: ratios[rewrites] for rewrites in trials_of(ledger) if ratios.get(rewrites, 0) > 1}
        standing = ledger.read_promotions(SIGNATURE, HERE)
        assert [rewrites_of(one.decision) for one in standing[:1]] == sorted(proved, key=ratios.__getitem__)[-1:]
        # Only the last moment is after the end.
        assert is_settled(subject) is (trials_of(ledger)[-1:] == [()])
        if proved:
            stood.add(rewrites_of(standing[0].decision))
            continue
        # The next process, where nothing stands.
        done = set(trials_of(ledger))
        following = searching(ratios)
        run(following, subject)
        assert set(following.tried) == {rewrites for rewrites in ratios if rewrites not in done}
        assert verify(ledger).problem is None
        assert is_settled(subject)
    else:
        pytest.fail("no search has so many moments")
    assert moment > 10
    # At some moment each of those that were the fastest so far.
    fastest = [r for n, r in enumerate(ratios) if ratios[r] > max([1, *list(ratios.values())[:n]])]
    assert stood == set(fastest)


def test_a_ledger_that_fails_in_the_middle_leaves_the_rest_to_the_next_process(tmp_path: Path) -> None:
    place = parse_location(str(tmp_path / "ledger.sqlite3"))
    subject = Subject(place, SIGNATURE, HERE, SETUP, POLICY)
    ratios = RATIOS["the last"]
    appended: list[RecordedEvent] = []

    def record(decisions: Sequence[Decision]) -> None:
        if appended:
            raise LedgerError("the disk is full")
        appended.extend(append_decisions(place, decisions))

    with pytest.raises(LedgerError, match="disk is full"):
        searching(ratios).try_graph(record=record)
    assert not is_settled(subject)
    following = searching(ratios)
    run(following, subject)
    assert following.tried == [("hoist_copy",), ("onednn_products",)]


def test_search_that_timed_out_is_not_treated_as_interrupted(tmp_path: Path) -> None:
    place = parse_location(str(tmp_path / "ledger.sqlite3"))
    subject = Subject(place, SIGNATURE, HERE, SETUP, POLICY)
    search = searching(RATIOS["none"])
    search.slow = ("onednn_products",)
    run(search, subject)
    assert is_settled(subject)
