"""What is applied without being asked for: what stands in the ledger for this graph here, and nothing else."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from unproved_promotions import everything_made
from unproved_promotions import promotion as promotion_of

import frx_graph
from frx_graph import backend
from frx_graph.autopilot.search_log import SearchLog
from frx_graph.autopilot.trial_decisions import decide_search
from frx_graph.compiler import eager
from frx_graph.compiler.plans import is_permitted, make_recorded_plan
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.errors import LedgerError, SerializationError, TrialError
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Decision, Kind, make_process_author
from frx_graph.ledger.location import make_missing_error, parse_location
from frx_graph.ledger.store import Ledger
from frx_graph.monitor.health_signals import PromisedTimes
from frx_graph.options import parse_backend_options
from frx_graph.promotion import active_plan, autopilot_trials, history, lookup, promoted_plan
from frx_graph.promotion.lookup import PromotedPlans
from frx_graph.promotion.promoted_plan import Promotion
from frx_graph.records import Candidate, Risk
from frx_graph.support.supervisor.process import extend_pythonpath
from frx_graph.support.user_warning import WarnOnce
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import Load, Loaded, TargetWorkload, Warm, Warmed, ask
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.verdict import Outcome, Verdict

OPTIONS = {"inner": "eager"}
MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3)
        self.second = nn.Conv2d(8, 8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def build():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(2, 8, 12, 12),)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[nn.Module, Tensor]]:
    torch._dynamo.reset()
    backend.clear()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    namespace: dict[str, Any] = {}
    exec(compile(MODEL, str(tmp_path / "model.py"), "exec"), namespace)
    built, (x,) = namespace["build"]()
    yield built, x
    torch._dynamo.reset()
    backend.clear()


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    file = tmp_path / "ledger.sqlite3"
    monkeypatch.setenv("FRX_LEDGER", str(file))
    return open_ledger(parse_location(str(file)))


def proposed(program: nn.Module, x: Tensor) -> tuple[str, tuple[Candidate, ...]]:
    """The signature of the one graph, and all that can be made of it."""

    def run(compiler: Callable[..., Any]) -> None:
        with torch.no_grad():
            torch.compile(program, backend=compiler)(x)

    (signature,), made = everything_made("eager", run)
    torch._dynamo.reset()
    backend.clear()
    return signature, made


def promoted(program: nn.Module, x: Tensor, **changes: Any) -> list[Decision]:
    signature, candidates = proposed(program, x)
    assert candidates
    return promotion_of(signature, candidates, **changes)


def applied(program: nn.Module, x: Tensor, **options: Any) -> list[str]:
    """What `backend="frx"` makes of the program, which nobody can tell by its results."""
    with torch.no_grad():
        expected = program(x)
        found = torch.compile(program, backend="frx", options={**OPTIONS, **options})(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found.stride() == expected.stride()
    return [candidate.rewrite for done in backend.rewritten() for candidate in done.applied]


def kinds(ledger: Ledger) -> list[Kind]:
    return [event.decision.kind for event in ledger.read_events()]


def test_promoted_plan_is_applied_and_recorded_once(model, ledger: Ledger) -> None:
    decisions = promoted(*model)
    ledger.append(decisions)
    assert applied(*model) == [candidate.rewrite for candidate in decisions[0].candidates]
    assert kinds(ledger) == [Kind.PROPOSED, Kind.TRIED, Kind.PROMOTED, Kind.APPLIED]
    torch._dynamo.reset()
    assert applied(*model)
    assert kinds(ledger)[3:] == [Kind.APPLIED]


@pytest.mark.parametrize("kind", [Kind.REJECTED, Kind.ROLLED_BACK, Kind.EXPIRED])
def test_withdrawn_plan_is_not_applied(model, ledger: Ledger, kind: Kind) -> None:
    decisions = promoted(*model)
    author = make_process_author("somebody")
    ledger.append([*decisions, decisions[-1].make_follow_up(kind, reason="no", by=author, at=datetime.now(UTC))])
    assert applied(*model) == []
    assert kinds(ledger)[-1] is kind


def test_proposed_or_tried_plan_is_not_applied(model, ledger: Ledger) -> None:
    ledger.append(promoted(*model)[:2])
    assert applied(*model) == []


def test_old_promotion_expires(model, ledger: Ledger) -> None:
    old = datetime.now(UTC) - timedelta(days=31)
    ledger.append(promoted(*model, recorded_at=old, policy=TrialPolicy().hash))
    assert applied(*model) == []
    assert kinds(ledger)[-1] is Kind.EXPIRED
    assert ledger.read_events()[-1].decision.policy == TrialPolicy().hash


def project_with(policy: str) -> None:
    """The working folder's, with this policy."""
    Path("pyproject.toml").write_text(f"[tool.frx.policy]\n{policy}\n")


def test_what_is_too_old_for_another_policy_is_not_applied_under_that_one_alone(model, ledger: Ledger) -> None:
    two_days = datetime.now(UTC) - timedelta(days=2)
    ledger.append(promoted(*model, recorded_at=two_days, policy=TrialPolicy().hash))
    project_with("decision_max_age_days = 1")
    assert applied(*model) == []
    assert kinds(ledger)[3:] == []
    Path("pyproject.toml").unlink()
    torch._dynamo.reset()
    assert applied(*model)


def test_what_is_too_old_here_and_was_inconclusive_today_is_tried_again_tomorrow(
    model, ledger: Ledger, candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_days = datetime.now(UTC) - timedelta(days=2)
    ledger.append(promoted(*model, recorded_at=two_days, policy=TrialPolicy().hash))
    policy = TrialPolicy(decision_max_age_days=1)
    seen: list[str] = []
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", proving("inconclusive", seen, policy))
    for _ in range(2):
        torch._dynamo.reset()
        assert applied(*model, mode="autopilot", policy={"decision_max_age_days": 1}) == []
        assert len(seen) == 1


def test_what_is_of_a_higher_risk_than_a_policy_allows_is_not_applied_under_it(
    model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature, risky = proposed(*model)
    candidates = tuple(one for one in risky if is_permitted(Risk.LOW, [one]))
    assert 0 < len(candidates) < len(risky)
    ledger.append(promotion_of(signature, risky, policy=TrialPolicy().hash))
    project_with("risk = 'LOW'")
    assert applied(*model) == []
    assert kinds(ledger)[3:] == []
    # What the autopilot may try here is searched for once, as if the other were not there.
    seen: list[str] = []
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", proving("reject", seen, TrialPolicy(risk=Risk.LOW)))
    monkeypatch.setattr(f"{__name__}.CANDIDATES", candidates)
    for _ in range(2):
        torch._dynamo.reset()
        assert applied(*model, mode="autopilot") == []
        assert seen == [signature]
    # One that it allows is applied, though it was promoted before.
    ledger.append(promotion_of(signature, candidates))
    ledger.append(promotion_of(signature, risky))
    torch._dynamo.reset()
    assert applied(*model) == [candidate.rewrite for candidate in candidates]


@pytest.mark.parametrize(
    "change",
    [{"environment": "0" * 16}, {"signature": "0" * 16}, {"plan": "0" * 16}],
    ids=["environment", "graph", "plan"],
)
def test_plan_promoted_for_something_else_is_not_applied(model, ledger: Ledger, change: dict[str, str]) -> None:
    ledger.append(promoted(*model, **change))
    assert applied(*model) == []
    assert Kind.APPLIED not in kinds(ledger)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inductor": lambda: inductor_config.patch(max_autotune=True),
    "functorch": lambda: functorch_config.patch(activation_memory_budget=0.5),
    "attention": lambda: sdpa_kernel(SDPBackend.MATH),
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_plan_promoted_under_other_settings_is_not_applied_and_warns_once(
    model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, setting: Callable[[], AbstractContextManager[Any]]
) -> None:
    monkeypatch.setattr(backend._session, "_promoted", None)
    ledger.append(promoted(*model))
    with warnings.catch_warnings(record=True) as warned, setting():
        warnings.simplefilter("always")
        for _ in range(2):
            torch._dynamo.reset()
            assert applied(*model) == []
    (warning,) = [str(one.message) for one in warned if "it was promoted in another environment" in str(one.message)]
    assert "What differs: its record does not tell. frx trial tries it" in warning
    assert Kind.APPLIED not in kinds(ledger)
    torch._dynamo.reset()
    assert applied(*model)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_plan_promoted_under_settings_is_applied_only_under_them(
    model, ledger: Ledger, setting: Callable[[], AbstractContextManager[Any]]
) -> None:
    with setting():
        ledger.append(promoted(*model))
        assert applied(*model)
    torch._dynamo.reset()
    backend.clear()
    assert applied(*model) == []


def test_settings_that_decide_nothing_change_nothing(model, ledger: Ledger) -> None:
    ledger.append(promoted(*model))
    with inductor_config.patch(fx_graph_cache=False), torch._dynamo.config.patch(recompile_limit=3):
        assert applied(*model)


def test_advice_applies_nothing(model, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    ledger.append(promoted(*model))
    assert applied(*model, mode="advise") == []
    frx_graph.report(measure=False)


def test_another_use_of_the_same_model_is_another_graph(model, ledger: Ledger) -> None:
    ledger.append(promoted(*model))
    program, x = model
    torch.compile(program.train(), backend="frx", options=OPTIONS)(x).sum().backward()
    assert [done.applied for done in backend.rewritten()] == []


def test_a_ledger_that_cannot_be_written_leaves_the_baseline_with_one_warning(
    model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.append(promoted(*model))
    file = ledger.location.file
    assert file is not None
    file.write_bytes(b"no database at all" * 100)
    for side in ("-wal", "-shm"):
        file.with_name(file.name + side).unlink(missing_ok=True)
    with pytest.warns(RuntimeWarning, match="could not look up promoted plans") as warned:
        assert applied(*model) == []
        torch._dynamo.reset()
        assert applied(*model) == []
    assert len([w for w in warned if "promoted" in str(w.message)]) == 1


@pytest.mark.integration
def test_a_target_in_an_arm_and_the_same_model_in_a_program_have_one_signature(model, tmp_path: Path) -> None:
    base = Load(TargetWorkload("model.py:build"), False, "eager", seed=0)
    with start_arm() as arm:
        ask(arm, base, Loaded, 120)
        answer = ask(arm, Warm(1), Warmed, 120)
    signature, _ = proposed(*model)
    assert [graph.signature for graph in answer.graphs] == [signature]


@pytest.mark.integration
def test_database_is_not_imported_without_a_ledger(tmp_path: Path) -> None:
    script = (
        "import sys, torch\n"
        "torch.compile(torch.nn.ReLU(), backend='frx', options={'inner': 'eager'})(torch.ones(2))\n"
        "assert not {'sqlalchemy', 'rich.console'} & set(sys.modules)\n"
    )
    environment = {**os.environ, **extend_pythonpath(), "XDG_DATA_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True, timeout=120)


def proving(verdict: str, seen: list[str], policy: TrialPolicy | None = None) -> Callable[..., Any]:
    """Stands for a search: proposes all that can be made, decides `verdict`, and ends."""

    def try_graph(dynamo: fx.GraphModule, *_: Any, signature: str, environment: str, record: Any, **__: Any) -> None:
        seen.append(signature)
        kind = {"promote": Kind.PROMOTED, "reject": Kind.REJECTED, "inconclusive": Kind.INCONCLUSIVE}[verdict]
        first = Decision(
            kind=Kind.PROPOSED,
            signature=signature,
            environment=environment,
            plan=make_recorded_plan(CANDIDATES).hash,
            reason="a test",
            decided_by="autopilot",
            host="here",
            process_id=1,
            recorded_at=datetime.now(UTC),
            policy=(policy or TrialPolicy()).hash,
            candidates=CANDIDATES,
        )
        trial = '{"schema": "frx_trial_v1", "verdict": "promote"}'
        record([first, replace(first, kind=Kind.TRIED, trial=trial), replace(first, kind=kind)])
        record(ended(signature, environment, policy))

    return try_graph


def ended(signature: str, environment: str, policy: TrialPolicy | None = None) -> tuple[Decision, ...]:
    under, by = policy or TrialPolicy(), make_process_author("autopilot")
    return decide_search(signature, environment, under, Kind.REJECTED, "all was tried", by=by)


CANDIDATES: tuple[Candidate, ...] = ()


@pytest.fixture
def candidates(model, monkeypatch: pytest.MonkeyPatch) -> tuple[Candidate, ...]:
    found = proposed(*model)[1]
    monkeypatch.setattr(f"{__name__}.CANDIDATES", found)
    return found


@pytest.mark.parametrize(("verdict", "times"), [("promote", 1), ("reject", 1), ("inconclusive", 1)])
def test_the_autopilot_tries_what_nothing_was_decided_about(
    model, ledger: Ledger, candidates, verdict: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", proving(verdict, seen))
    for _ in range(2):
        torch._dynamo.reset()
        backend.clear()
        made = applied(*model, mode="autopilot")
        assert made == [candidate.rewrite for candidate in candidates] * (verdict == "promote")
    assert len(seen) == times
    assert (Kind.APPLIED in kinds(ledger)) is (verdict == "promote")


def test_the_autopilot_reports_what_it_has_tried(
    model,
    ledger: Ledger,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verdict = Verdict(Outcome.REJECT, "numerics: 3 of 12 results differ", None, early=True)

    def try_graph(*_: Any, log: SearchLog, progress: Callable[[str], None], **__: Any) -> None:
        log.start(["propagate_layout"], 299)
        progress("propagate_layout: comparing their results")
        log.note_trial("propagate_layout", verdict, verdict.statistics and verdict.statistics.ratio_median)
        log.finish("all was tried")

    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", try_graph)
    monkeypatch.setenv("FRX_LOG", "debug")
    logger = logging.getLogger("frx_graph")
    monkeypatch.setattr(logger, "handlers", [])
    request.addfinalizer(functools.partial(logger.setLevel, logger.level))
    logger.setLevel(logging.NOTSET)
    with torch.no_grad():
        frx_graph.compile(model[0], policy={"time_budget_seconds": 300}, options=OPTIONS)(model[1])
    assert capsys.readouterr().err.splitlines() == [
        "frx: graph 0/0: asking for candidates, and trying them, for at most 300 s; this call waits",
        "frx: trying 1 candidate on graph 0/0, for at most 299 s: propagate_layout",
        "frx: graph 0/0: propagate_layout: comparing their results",
        "frx: candidate 1 of 1, propagate_layout: rejected, numerics: 3 of 12 results differ",
        "frx: graph 0/0: done after 0 s: 0 of 1 promoted, it is compiled as without frx; "
        "frx_graph.report() has the rest",
    ]
    report = frx_graph.report(measure=False)
    (search,) = report.advice.autopilot
    assert search.graph_id == report.advice.graphs[0].graph_id
    assert [tried.result for tried in search.tried] == ["rejected"]
    assert "0 of 1 promoted" in str(report)
    backend.clear()
    torch._dynamo.reset()
    applied(*model)
    assert frx_graph.report(measure=False).advice.autopilot == ()


def test_what_was_inconclusive_a_while_ago_is_tried_again_but_not_what_was_rejected(
    model, ledger: Ledger, candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_TRIED_AGAIN_AFTER", timedelta(0))
    decisions = promoted(*model, policy=TrialPolicy().hash)
    other = replace(candidates[0], nodes=("another",))
    rejected = replace(decisions[0], plan=make_recorded_plan((other,)).hash, candidates=(other,))
    trial = '{"schema": "frx_trial_v1", "verdict": "reject"}'
    ledger.append([rejected, replace(rejected, kind=Kind.TRIED, trial=trial), replace(rejected, kind=Kind.REJECTED)])
    ledger.append([*decisions[:2], replace(decisions[2], kind=Kind.INCONCLUSIVE)])
    given: list[frozenset[str]] = []
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", lambda *_, rejected, **__: given.append(rejected))
    assert applied(*model, mode="autopilot") == []
    assert given == [frozenset({rejected.plan})]


def rejected(
    signature: str, candidates: tuple[Candidate, ...], policy: TrialPolicy, days_ago: float = 0.0
) -> list[Decision]:
    at = datetime.now(UTC) - timedelta(days=days_ago)
    proposed, tried, _ = promotion_of(signature, candidates, policy=policy.hash, recorded_at=at)
    return [proposed, tried, replace(proposed, kind=Kind.REJECTED)]


@pytest.mark.parametrize(
    ("under", "days_ago", "again"),
    [
        (TrialPolicy(), 0.0, False),
        (TrialPolicy(), 29.0, False),
        (TrialPolicy(), 31.0, True),
        (TrialPolicy(risk=Risk.LOW), 0.0, True),
        (TrialPolicy(minimum_speedup=0.2), 0.0, True),
    ],
    ids=["the same", "a while ago", "too long ago", "less risk", "more asked for"],
)
def test_rejected_plan_is_tried_again_under_another_policy(
    model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, under: TrialPolicy, days_ago: float, again: bool
) -> None:
    signature, candidates = proposed(*model)
    # Nothing to try, and a rewrite that was too slow.
    for made in ((), candidates):
        ledger.append(rejected(signature, made, under, days_ago))
    given: list[frozenset[str]] = []
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", lambda *_, rejected, **__: given.append(rejected))
    assert applied(*model, mode="autopilot") == []
    assert given == [frozenset()] * again


def test_plan_inconclusive_under_another_policy_is_tried_now(
    model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature, candidates = proposed(*model)
    *before, last = rejected(signature, candidates, TrialPolicy(time_budget_seconds=1.0))
    ledger.append([*before, replace(last, kind=Kind.INCONCLUSIVE)])
    seen: list[str] = []
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", proving("reject", seen))
    assert applied(*model, mode="autopilot") == []
    assert seen == [signature]


def test_trial_with_other_graphs_does_not_decide_this_graph(
    model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = promoted(*model)
    signature = decisions[0].signature
    ledger.append(decisions[:2])
    seen: list[str] = []
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", proving("reject", seen))
    assert applied(*model, mode="autopilot") == []
    assert seen == [signature]
    # Nor does it open what was decided since.
    torch._dynamo.reset()
    assert applied(*model, mode="autopilot") == []
    assert seen == [signature]


def test_unfinished_search_is_continued(model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    signature, candidates = proposed(*model)
    decisions = rejected(signature, candidates, TrialPolicy())
    ledger.append(decisions)
    given: list[frozenset[str]] = []
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", lambda *_, rejected, **__: given.append(rejected))
    assert applied(*model, mode="autopilot") == []
    assert given == [frozenset({decisions[0].plan})]
    ledger.append(ended(signature, decisions[0].environment))
    torch._dynamo.reset()
    assert applied(*model, mode="autopilot") == []
    assert len(given) == 1


def since_long_ago(signature: str, candidates: tuple[Candidate, ...]) -> list[Decision]:
    """Under another policy, whose processes still apply it."""
    at = datetime.now(UTC) - timedelta(days=31)
    under = TrialPolicy(decision_max_age_days=90)
    return promotion_of(signature, candidates, policy=under.hash, recorded_at=at)


def expired(signature: str, candidates: tuple[Candidate, ...]) -> list[Decision]:
    decisions = since_long_ago(signature, candidates)
    return [*decisions, replace(decisions[-1], kind=Kind.EXPIRED)]


def inconclusive(signature: str, candidates: tuple[Candidate, ...]) -> list[Decision]:
    at = datetime.now(UTC) - timedelta(days=2)
    *before, last = promotion_of(signature, candidates, policy=TrialPolicy().hash, recorded_at=at)
    return [*before, replace(last, kind=Kind.INCONCLUSIVE)]


@pytest.mark.parametrize("left", [since_long_ago, expired, inconclusive])
def test_what_a_search_has_no_more_cause_to_try_is_not_searched_for_twice(
    model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, left: Callable[..., list[Decision]]
) -> None:
    signature, candidates = proposed(*model)
    decisions = left(signature, candidates)
    ledger.append(decisions)
    environment = decisions[0].environment
    seen: list[str] = []

    def ends_at_once(*_: Any, record: Any, **__: Any) -> None:
        seen.append(signature)
        record(ended(signature, environment))

    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", ends_at_once)
    for _ in range(3):
        torch._dynamo.reset()
        assert applied(*model, mode="autopilot") == []
        if left is since_long_ago:
            ledger.append([replace(decisions[-1], kind=Kind.APPLIED, trial=None)])
    assert seen == [signature]
    # What comes up after the search is a reason for one more.
    ledger.append(left(signature, candidates))
    torch._dynamo.reset()
    assert applied(*model, mode="autopilot") == []
    assert len(seen) == 2


@pytest.mark.integration
def test_what_was_rejected_is_known_without_a_database(model, ledger: Ledger, tmp_path: Path) -> None:
    signature, candidates = proposed(*model)
    decisions = rejected(signature, candidates, TrialPolicy())
    ledger.append([*decisions, *ended(signature, decisions[0].environment)])
    script = (
        "import sys, torch\n"
        "from model import build\n"
        "model, (x,) = build()\n"
        "with torch.no_grad():\n"
        "    torch.compile(model, backend='frx', options={'inner': 'eager', 'mode': 'autopilot'})(x)\n"
        "heavy = {'sqlalchemy', 'rich.console', 'scipy.stats', 'frx_graph.autopilot.search'} & set(sys.modules)\n"
        "assert 'frx_graph.promotion.history' in sys.modules and not heavy, heavy\n"
    )
    environment = {**os.environ, **extend_pythonpath()}
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True, timeout=120)


@pytest.mark.integration
def test_with_options_of_inductors_nothing_is_looked_up(model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup.PromotedPlans, "find", never)
    program, x = model
    with torch.no_grad():
        torch.compile(program, backend="frx", options={"inner_options": {"max_autotune": False}})(x)
    assert kinds(ledger) == []


def test_the_budget_is_for_all_graphs_of_a_process(model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second graph gets what the first has left, the third nothing."""
    now = iter([0.0, 60.0, 60.0, 100.0])
    given: list[float] = []
    monkeypatch.setattr(backend._session, "_promoted", None)
    monkeypatch.setattr(autopilot_trials, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", lambda *_, seconds, **__: given.append(seconds))
    with warnings.catch_warnings(record=True) as warned, torch.no_grad():
        warnings.simplefilter("always")
        for kind in (nn.ReLU, nn.SiLU, nn.GELU, nn.Tanh):
            options = {"inner": "eager", "mode": "autopilot", "policy": {"time_budget_seconds": 100}}
            torch.compile(kind(), backend="frx", options=options)(torch.ones(3))
    assert given == [100.0, 40.0]
    assert len([one for one in warned if "budget is used up" in str(one.message)]) == 1


def test_a_ledger_that_is_gone_cannot_record_a_rollback(model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = model
    ledger.append(promoted(*model))
    harmful(monkeypatch)
    compiled = torch.compile(program, backend="frx", options=OPTIONS)
    monkeypatch.setattr(promoted_plan, "read_promotions", missing_ledger)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="could not be recorded .there is no ledger"):
        compiled(x)


def found_by(plans: PromotedPlans, program: nn.Module, x: Tensor) -> Promotion:
    """What stands for the one graph."""
    found = []

    def compiler(dynamo: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append(plans.find(dynamo, inputs, parse_backend_options(OPTIONS, None)))
        return dynamo.forward

    with torch.no_grad():
        torch.compile(program, backend=compiler)(x)
    (standing,) = found
    assert standing is not None
    return standing


def test_a_plan_is_rolled_back_once(model, ledger: Ledger) -> None:
    ledger.append(promoted(*model))
    plans = PromotedPlans()
    standing = found_by(plans, *model)
    assert plans.record.withdraw(standing, "a forward fails:\0\nwith\rwhat\x85it\u2028has \u202esaid")
    assert not plans.record.withdraw(standing, "its backward does, too")
    assert [event.decision.reason for event in ledger.read_events()][-1] == "a forward fails: with what it has said"
    assert kinds(ledger).count(Kind.ROLLED_BACK) == 1


def test_a_rollback_is_recorded_only_where_the_plan_is_known(model, ledger: Ledger, tmp_path: Path) -> None:
    """As on a rank with a ledger of its own, which was offered the plan by the first."""
    decisions = promoted(*model)
    ledger.append(decisions)
    standing = found_by(PromotedPlans(), *model)
    own = open_ledger(parse_location(str(tmp_path / "own.sqlite3")))
    here = replace(standing, subject=replace(standing.subject, place=own.location))
    with pytest.raises(LedgerError, match=f"own.sqlite3 does not know plan {standing.plan.hash}"):
        here.withdraw("it does harm")
    assert own.read_events() == ()
    own.append(decisions)
    here.withdraw("it does harm")
    here.withdraw("once more")
    assert [event.decision.reason for event in own.read_events()][3:] == ["it does harm"]
    assert Kind.ROLLED_BACK not in kinds(ledger)


def never(*_: Any, **__: Any) -> None:
    """No `Exception`, which would be taken for a failure of ours, and survived."""
    pytest.fail("it was asked")


def missing_ledger(place: Any, *_: Any) -> Any:
    raise make_missing_error(place)


def test_autopilot_does_not_retry_a_rolled_back_plan(
    model, ledger: Ledger, candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = promoted(*model)
    author = make_process_author("somebody")
    now = datetime.now(UTC)
    ledger.append([*decisions, decisions[-1].make_follow_up(Kind.ROLLED_BACK, reason="no", by=author, at=now)])
    seen: list[str] = []
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", proving("promote", seen))
    assert applied(*model, mode="autopilot") == []
    assert seen == []


def test_apply_never_tries(model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", never)
    assert applied(*model) == []


def test_a_trial_that_cannot_be_made_leaves_the_baseline_with_one_warning(
    model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise SerializationError("an operator of the script")

    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", fails)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(2):
            torch._dynamo.reset()
            assert applied(*model, mode="autopilot") == []
        # A ledger that fails later is said, too.
        monkeypatch.setattr(active_plan, "read_promotions", missing_disk)
        torch._dynamo.reset()
        assert applied(*model, mode="autopilot") == []
    said = [str(one.message) for one in warned if "frx" in str(one.message)]
    assert [one.partition(" (")[0] for one in said] == [
        "frx could not try a graph",
        "frx could not look up promoted plans",
    ]
    assert "an operator of the script" in said[0]


def missing_disk(*_: Any) -> Any:
    raise LedgerError("the disk is gone")


def test_what_was_proved_is_applied_also_where_a_later_trial_cannot_be_run(
    model, ledger: Ledger, candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove = proving("promote", [])

    def proves_and_fails(*args: Any, **how: Any) -> None:
        prove(*args, **how)
        raise TrialError("the baseline does not run")

    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", proves_and_fails)
    monkeypatch.setattr(backend._session, "_promoted", None)
    with pytest.warns(RuntimeWarning, match="could not try all.*the baseline does not run.*applies the plan proved"):
        assert applied(*model, mode="autopilot") == [candidate.rewrite for candidate in candidates]
    assert kinds(ledger)[-1] is Kind.APPLIED


@pytest.mark.parametrize("how", ["somebody rolls it back", "another trial rejects it"])
def test_what_is_decided_against_a_plan_in_the_middle_of_a_search_ends_it(
    model, ledger: Ledger, candidates, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    recorded: list[Any] = []

    def searches(*_: Any, signature: str, record: Any, **__: Any) -> None:
        fast = promotion_of(signature, candidates, decided_by="autopilot", policy=TrialPolicy().hash)
        other = (replace(candidates[0], nodes=("another",)),)
        recorded.append(record(fast))
        if how == "somebody rolls it back":
            ledger.append([replace(fast[-1], kind=Kind.ROLLED_BACK, decided_by="somebody")])
            # A plan that nobody has said anything against.
            record(promotion_of(signature, other, decided_by="autopilot", policy=TrialPolicy().hash))
        else:
            ledger.append([*fast[:2], replace(fast[0], kind=Kind.REJECTED)])
            record([fast[-1]])
        recorded.append("more")

    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", searches)
    monkeypatch.setattr(backend._session, "warnings", WarnOnce())
    with pytest.warns(RuntimeWarning, match="could not try a graph.*meanwhile"):
        assert applied(*model, mode="autopilot") == []
    assert len(recorded) == 1
    assert kinds(ledger)[-1] in (Kind.ROLLED_BACK, Kind.REJECTED)


@pytest.mark.integration
def test_a_real_trial_by_the_autopilot(model, ledger: Ledger) -> None:
    policy = {"process_pairs": 2, "quads_per_pair": 3, "steps_per_block": 1, "void_quads_allowed": 0}
    made = applied(*model, mode="autopilot", policy=policy)
    found = kinds(ledger)
    assert found[:2] == [Kind.PROPOSED, Kind.TRIED]
    assert found[2] in (Kind.PROMOTED, Kind.REJECTED, Kind.INCONCLUSIVE)
    # What becomes of it is the machine's to say.
    assert bool(made) is (Kind.PROMOTED in found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "autopilot", "policy": {"minimum_speed": 1}}, "did you mean 'minimum_speedup'"),
        ({"mode": "autopilot", "policy": "nowhere.yaml"}, "cannot be read"),
        ({"policy": {"minimum_speedup": 0.1}}, "mode 'autopilot'"),
        ({"mode": "autopilot", "plan": "all"}, "finds a plan by itself"),
        ({"mode": "autopilot", "inner_options": {"max_autotune": False}}, "with inner_options"),
        ({"mode": "autopilt"}, "mode"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        torch.compile(nn.ReLU(), backend="frx", options=options)(torch.ones(2))


def harmful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan makes NaN from now on."""
    real = backend.make_planned_backend

    def compiling(options: Any, plan: Any, failed: Any) -> Callable[..., Any]:
        compile_graph = real(options, plan, failed)
        if plan is None:
            return compile_graph

        def compile_and_spoil(dynamo: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Callable[..., Any]:
            program = compile_graph(dynamo, inputs, **how)
            return lambda *args: tuple(value * torch.nan for value in program(*args))

        return compile_and_spoil

    monkeypatch.setattr(backend, "make_planned_backend", compiling)


def test_harmful_plan_is_rolled_back_and_not_retried(model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = model
    ledger.append(promoted(*model))
    harmful(monkeypatch)
    compiled = torch.compile(program, backend="frx", options=OPTIONS)
    with torch.no_grad():
        expected = torch.compile(program, backend="eager")(x)
        with pytest.warns(RuntimeWarning, match="went back to the baseline.*not finite.*not tried again"):
            first = compiled(x)
        second = compiled(x)
    for found in (first, second):
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
    assert kinds(ledger)[3:] == [Kind.APPLIED, Kind.ROLLED_BACK]
    event = ledger.read_events()[-1].decision
    assert event.decided_by == 'backend="frx"'
    assert event.policy == TrialPolicy().hash
    assert event.reason == "its results are not finite where the baseline's are"
    torch._dynamo.reset()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        assert torch.equal(torch.compile(program, backend="frx", options={**OPTIONS, "mode": "autopilot"})(x), expected)
    assert kinds(ledger)[5:] == []


@pytest.mark.gives_way
@pytest.mark.parametrize("when", ["compiled", "run"])
def test_a_rewrite_that_fails_is_rolled_back_with_its_reason(
    model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    program, x = model
    ledger.append(promoted(*model))
    real = eager.rewrite_graph

    def spoil(module: fx.GraphModule, **how: Any) -> RewrittenGraph:
        if when == "compiled":
            raise ZeroDivisionError("planted")
        done = real(module, **how)
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default):
            node.update_arg(8, 3)
        return done

    monkeypatch.setattr(eager, "rewrite_graph", spoil)
    compiled = torch.compile(program, backend="frx", options=OPTIONS)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(compiled(x), program(x))
    (said,) = (str(one.message) for one in caught if "frx" in str(one.message))
    assert "went back to the baseline" in said
    assert kinds(ledger)[3:] in ([Kind.APPLIED, Kind.ROLLED_BACK], [Kind.ROLLED_BACK])
    assert "failed where the baseline does not" in ledger.read_events()[-1].decision.reason


def test_process_remembers_a_rollback_that_cannot_be_recorded(
    model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, x = model
    ledger.append(promoted(*model))
    harmful(monkeypatch)

    def broken(*_args: object, **_how: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(promoted_plan, "append_decisions", broken)
    compiled = torch.compile(program, backend="frx", options=OPTIONS)
    with torch.no_grad():
        expected = torch.compile(program, backend="eager")(x)
        with pytest.warns(RuntimeWarning, match="could not be recorded .the disk is full"):
            assert torch.equal(compiled(x), expected)
        torch._dynamo.reset()
        tried: list[str] = []
        monkeypatch.setattr("frx_graph.autopilot.search.try_graph", proving("promote", tried))
        autopilot = torch.compile(program, backend="frx", options={**OPTIONS, "mode": "autopilot"})
        assert torch.equal(autopilot(x), expected)
        assert tried == []
        torch._dynamo.reset()
        assert torch.equal(torch.compile(program, backend="frx", options=OPTIONS)(x), expected)
    assert kinds(ledger)[3:] == [Kind.APPLIED]


def test_a_rollback_that_another_writer_is_in_the_way_of_is_recorded_when_the_process_ends(
    model, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, x = model
    ledger.append(promoted(*model))
    harmful(monkeypatch)
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(backend, "atexit", SimpleNamespace(register=at_exit.append, unregister=at_exit.remove))
    monkeypatch.setattr(backend._session, "_unrecorded", [])
    monkeypatch.setattr("frx_graph.ledger.database.engine.BUSY_SECONDS", 0.05)
    given: list[float] = []
    append = promoted_plan.append_decisions

    def while_locked(place: Any, decisions: Any, *, patience_seconds: float) -> Any:
        given.append(patience_seconds)
        with contextlib.closing(sqlite3.connect(str(place.file), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            return append(place, decisions, patience_seconds=0.1)

    compiled = torch.compile(program, backend="frx", options=OPTIONS)
    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(promoted_plan, "append_decisions", while_locked)
        with pytest.warns(RuntimeWarning, match="locked by another process.*tried once more when the process ends"):
            compiled(x)
    assert given == [5.0]
    assert kinds(ledger)[3:] == [Kind.APPLIED]
    (end,) = at_exit
    end()
    assert kinds(ledger)[3:] == [Kind.APPLIED, Kind.ROLLED_BACK]
    assert ledger.read_events()[-1].decision.reason == "its results are not finite where the baseline's are"


def test_promised_times_are_read_from_the_trial(model, ledger: Ledger) -> None:
    program, x = model
    decisions = promoted(*model)
    blocks = [{"arm": arm, "seconds": [seconds]} for arm, seconds in (("baseline", 3.0), ("candidate", 2.0))]
    document = {"schema": "frx_trial_v1", "verdict": "promote", "samples": [{"void": False, "blocks": blocks}]}
    decisions[1] = replace(decisions[1], trial=json.dumps(document))
    ledger.append(decisions)
    found = []

    def backend_of(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(PromotedPlans().find(dynamo, inputs, parse_backend_options(OPTIONS, None)))
        return dynamo.forward

    with torch.no_grad():
        torch.compile(program, backend=backend_of)(x)
    assert found[0] is not None
    assert found[0].read_promise() == PromisedTimes(3.0, 2.0)
