"""Whatever happens, in whatever order: what is applied is promoted, valid and agreed, and what was rolled back leaves
nothing.

Random sequences of decisions, searches that end anywhere, processes and groups of ranks that apply what stands, run,
are harmed by it, and crash, against a model that knows the events alone.
"""

from __future__ import annotations

import enum
import itertools
import operator
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule
from pretended_search import PretendedSearch
from torch import Tensor, fx
from torch import distributed as dist

from frx_graph.compiler.fallback import LazyBaseline
from frx_graph.compiler.plans import make_recorded_plan
from frx_graph.distributed.consensus import Agreement, negotiate
from frx_graph.distributed.plan_offer import PlanOffer
from frx_graph.distributed.voting import Voter
from frx_graph.errors import LedgerError
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import AUTOPILOT, Decision, Kind, make_process_author, make_rollbacks
from frx_graph.ledger.fast_path import append_decisions
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.verification import verify
from frx_graph.monitor.health_signals import CHECK_STEPS
from frx_graph.monitor.monitored_program import MonitoredProgram
from frx_graph.monitor.program_pair import ProgramPair
from frx_graph.monitor.step_metrics import Footprint
from frx_graph.options import BackendOptions
from frx_graph.promotion.history import find_rejected, is_settled
from frx_graph.promotion.lookup import PromotedPlans
from frx_graph.promotion.promoted_plan import Promotion, Subject
from frx_graph.records import Candidate
from frx_graph.trials.environment import read_trial_setup
from frx_graph.trials.policy import TrialPolicy

SETUP = read_trial_setup(torch.device("cpu"))
POLICY = TrialPolicy(decision_max_age_days=30, canary_interval_steps=CHECK_STEPS, steps_per_block=1)
SIGNATURE = "5" * 16
ENVIRONMENTS = ("a" * 16, "b" * 16)
CANDIDATES = tuple((Candidate("reuse_memory", SIGNATURE, (name,), ()),) for name in ("one", "two", "three"))
SOUGHT = tuple(
    Candidate(name, SIGNATURE, ("a node",), ()) for name in ("hoist_copy", "cancel_permutes", "reuse_memory")
)
"""What the autopilot's search proposes."""
RATIOS = (0.9, 1.1, 1.2, 1.3)
MOST_MOMENTS = 14
"""In some searches more than there are: they come to their end."""
VERDICTS = (Kind.PROMOTED, Kind.REJECTED, Kind.INCONCLUSIVE)
CAUSES = (Kind.PROMOTED, Kind.INCONCLUSIVE, Kind.EXPIRED, Kind.ROLLED_BACK)
"""What may lead to one more search: a promotion once it is too old, a rollback by what expires with it."""
TRIAL = '{"schema": "frx_trial_v1"}'
X = torch.arange(-5.0, 7.0).reshape(3, 4).t()
BASELINE_SECONDS, PLANNED_SECONDS, SLOW_SECONDS = 1.0, 0.5, 2.0
MOST_STEPS = 12 * CHECK_STEPS
"""Until a plan that does harm is gone. One that is slow has to be so in many quads, where it was fast in the first."""
OPTIONS = BackendOptions(inner="eager")
AUTOPILOTS = BackendOptions(inner="eager", mode="autopilot")
OTHERS_WAIT_SECONDS = 0.02
"""For a rank that has died: it will not come."""
RANKS_WAIT_SECONDS = 60.0


def program(x: Tensor) -> Tensor:
    return (x * 3).relu()


def rewrite(graph: fx.GraphModule) -> None:
    """As compilers do, in place. What it computes is right, but not bit for bit."""
    (product,) = graph.graph.find_nodes(op="call_function", target=operator.mul)
    product.update_arg(1, 3 + 2**-18)
    graph.recompile()


def names_of(decision: Decision) -> tuple[str, ...]:
    return tuple(one.rewrite for one in decision.candidates)


def failing(result: Tensor) -> Tensor:
    raise ValueError("a kernel refuses")


HARMS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda result: result,
    "not finite": lambda result: result * torch.nan,
    "failure": failing,
    "slow": lambda result: result,
}


@dataclass
class Reading:
    """A machine on which nothing takes time but what is said to."""

    now: float = 0.0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def seconds(self) -> float:
        self.now += 1e-3
        return self.now

    read_clock = seconds

    def is_capturing(self) -> bool:
        return False

    def read_footprint(self) -> Footprint:
        return Footprint(0, 0)

    def watch_disturbances(self) -> Any:
        return nullcontext(lambda: None)


class Crashed(BaseException):
    """A process ends here."""


def crashing(moment: int) -> Callable[[], None]:
    """At this moment of all that a search has."""
    left = iter(range(moment))

    def at() -> None:
        if next(left, None) is None:
            raise Crashed

    return at


class Process:
    """One that has compiled a graph, by the plan that it has found, or by none."""

    def __init__(self, plans: PromotedPlans, found: Promotion | None) -> None:
        self.plans = plans
        self.found = found
        self.harm = "none"
        self.planned_runs = 0
        self.reasons: list[str] = []
        self.reading = Reading()
        self.run: Callable[[Tensor], Tensor] = program
        self.rewritten = fx.symbolic_trace(program)
        if self.found is not None:
            baseline = LazyBaseline(self.rewritten, [X], self._alone)
            rewrite(self.rewritten)
            self.run = MonitoredProgram(
                ProgramPair(
                    self._planned,
                    baseline,
                    POLICY,
                    self.reading,  # type: ignore[arg-type]
                    train=False,
                    repeatable=True,
                ),
                promise=self.found.read_promise,
                roll_back=lambda reason: self._roll_back(reason),
            )

    def _alone(self, dynamo: fx.GraphModule, _inputs: Sequence[Any]) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            self.reading.now += BASELINE_SECONDS
            result: Tensor = dynamo.forward(x)
            return result

        return run

    def _planned(self, x: Tensor) -> Tensor:
        self.planned_runs += 1
        self.reading.now += SLOW_SECONDS if self.harm == "slow" else PLANNED_SECONDS
        return HARMS[self.harm](self.rewritten.forward(x))

    def _roll_back(self, reason: str) -> None:
        assert self.found is not None
        self.reasons.append(reason)
        self.plans.record.withdraw(self.found, reason)

    def runs_the_baseline(self) -> bool:
        """Whether it does now, bit for bit, without a step of the plan's."""
        before = self.planned_runs
        result, expected = self.run(X), program(X)
        same = torch.equal(result, expected) and result.stride() == expected.stride()
        return same and self.planned_runs == before


class Rank(enum.Enum):
    """How one of several ranks differs from the first."""

    THE_SAME = "not at all"
    ELSEWHERE = "runs in another environment"
    WITHDREW = "has rolled back what stands, where its own ledger could not be written"
    DECIDED_AGAINST = "has a ledger of its own, in which what stands was rejected"
    DEAD = "never answers"


def agreed(subjects: Sequence[Subject], plans: Sequence[PromotedPlans], dead: Sequence[bool]) -> list[Agreement]:
    """What ranks say, each in a thread, that are told by the first what stands; the dead say nothing."""
    store = dist.HashStore()
    seconds = OTHERS_WAIT_SECONDS if any(dead) else RANKS_WAIT_SECONDS

    def one(rank: int) -> Agreement:
        voter = Voter(range(len(plans)), rank, seconds, lambda: store)
        return negotiate(
            voter,
            lambda: plans[rank].make_offer(subjects[rank], OPTIONS),
            lambda offered: plans[rank].find_objection(subjects[rank], OPTIONS, offered),
        )

    with ThreadPoolExecutor(len(plans)) as threads:
        return list(threads.map(one, [rank for rank in range(len(plans)) if not dead[rank]]))


class Lives(RuleBasedStateMachine):
    processes = Bundle("processes")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="frx-lives-")
        self.place = parse_location(str(Path(self.folder) / "ledger.sqlite3"))
        self.ledger = open_ledger(self.place)
        self.events: list[Decision] = []
        self.own_ledgers = 0
        self.searched: dict[str, int] = {}
        """How many events there were when the last search of an environment had ended."""

    def teardown(self) -> None:
        assert verify(self.ledger).problem is None
        shutil.rmtree(self.folder)

    def subject(self, environment: str) -> Subject:
        return Subject(self.place, SIGNATURE, environment, SETUP, POLICY)

    def decide(self, decisions: list[Decision]) -> bool:
        """Append them if the ledger takes them."""
        try:
            self.ledger.append(decisions)
        except LedgerError:
            return False
        self.events += decisions
        return True

    def catch_up(self) -> list[Decision]:
        """What processes have appended since."""
        new = [event.decision for event in self.ledger.read_events()[len(self.events) :]]
        self.events += new
        return new

    def standing(self, environment: str) -> list[Decision]:
        """The promotions that stand, by the events alone, the last first."""
        stand: dict[str, Decision] = {}
        for event in self.events:
            if event.environment != environment:
                continue
            if event.kind is Kind.PROMOTED:
                stand.pop(event.plan, None)
                stand[event.plan] = event
            elif event.kind is Kind.ROLLED_BACK and event.plan in stand:
                # Back to the baseline, not to whatever was promoted before.
                stand.clear()
            elif event.kind in (Kind.REJECTED, Kind.EXPIRED, Kind.ROLLED_BACK):
                stand.pop(event.plan, None)
        return list(reversed(stand.values()))

    @rule(
        which=st.sampled_from(CANDIDATES),
        environment=st.sampled_from(ENVIRONMENTS),
        verdict=st.sampled_from(VERDICTS),
        days_ago=st.sampled_from([0, 29, 31]),
        by=st.sampled_from([AUTOPILOT, "frx trial"]),
        policy=st.sampled_from([POLICY.hash, "f" * 16]),
    )
    def try_a_plan(
        self, which: tuple[Candidate, ...], environment: str, verdict: Kind, days_ago: int, by: str, policy: str
    ) -> None:
        plan = make_recorded_plan(which).hash
        proposed = Decision(
            kind=Kind.PROPOSED,
            signature=SIGNATURE,
            environment=environment,
            plan=plan,
            reason="a test",
            decided_by=by,
            host="here",
            process_id=1,
            recorded_at=datetime.now(UTC) - timedelta(days=days_ago),
            policy=policy,
            candidates=which,
        )
        tried = replace(proposed, kind=Kind.TRIED, trial=TRIAL)
        taken = self.decide([proposed, tried, replace(proposed, kind=verdict)])
        rolled_back = False
        for event in self.events[: -3 if taken else None]:
            if (event.plan, event.environment) == (plan, environment):
                asked = event.kind is Kind.PROPOSED and event.decided_by != AUTOPILOT
                rolled_back = event.kind is Kind.ROLLED_BACK or (rolled_back and not asked)
        # What was rolled back is tried again only when somebody asks.
        assert taken is not (rolled_back and by == AUTOPILOT)

    @rule(environment=st.sampled_from(ENVIRONMENTS))
    def somebody_rolls_back(self, environment: str) -> None:
        found = self.ledger.read_promotions(SIGNATURE, environment)
        if found:
            author = make_process_author("somebody")
            assert self.decide(list(make_rollbacks(found[:1], reason="no", by=author, now=datetime.now(UTC))))
            assert self.standing(environment) == []

    @rule(target=processes, environment=st.sampled_from(ENVIRONMENTS))
    def a_process_starts(self, environment: str) -> Process:
        standing = self.standing(environment)
        plans = PromotedPlans()
        process = Process(plans, plans.active.find(self.subject(environment)))
        applied = self.applied(environment, standing)
        assert (None if process.found is None else process.found.plan.hash) == applied
        return process

    @rule(
        environment=st.sampled_from(ENVIRONMENTS),
        ratios=st.tuples(*[st.sampled_from(RATIOS)] * (len(SOUGHT) + 1)),
        moment=st.integers(0, MOST_MOMENTS),
    )
    def the_autopilot_searches(self, environment: str, ratios: tuple[float, ...], moment: int) -> None:
        standing = self.standing(environment)
        plans, subject = PromotedPlans(), self.subject(environment)
        found = plans.active.find(subject)
        assert (found is None) is (self.applied(environment, standing) is None)
        if found is not None or not plans.trials.is_wanted(subject, AUTOPILOTS):
            return
        # A search that ended is repeated only for what has come up since.
        assert environment not in self.searched or any(
            event.environment == environment and event.kind in CAUSES
            for event in self.events[self.searched[environment] :]
        )
        names = [one.rewrite for one in SOUGHT]
        together = [several for count in (2, 3) for several in itertools.combinations(names, count)]
        search = PretendedSearch(
            SOUGHT,
            ratios={
                **{(name,): one for name, one in zip(names, ratios, strict=False)},
                **dict.fromkeys(together, ratios[-1]),
            },
            at=crashing(moment),
            signature=SIGNATURE,
            environment=environment,
            policy=POLICY,
        )
        before = self.standing(environment)
        with suppress(Crashed):
            search.try_graph(find_rejected(subject), record=lambda decisions: append_decisions(self.place, decisions))
        new = self.catch_up()
        if any(one.plan == make_recorded_plan(()).hash for one in new):
            self.searched[environment] = len(self.events)
            assert is_settled(subject)
        proved = [one for one in new if one.kind is Kind.PROMOTED]
        fastest = max((search.ratios[names_of(one)] for one in proved), default=None)
        now = self.standing(environment)
        if fastest is None:
            # A plan that stands, behind one that has grown too old, is tried again as any other.
            refuted = {one.plan for one in new if one.kind is Kind.REJECTED}
            assert now == [one for one in before if one.plan not in refuted]
        else:
            assert search.ratios[names_of(now[0])] == fastest > 1
        # What a trial has found out is kept before the next one begins.
        assert {names_of(one) for one in new if one.kind is Kind.TRIED} >= set(search.tried[:-1])
        # Nothing is taken for decided that was not tried.
        tried = {one.plan for one in self.events if one.environment == environment and one.kind is Kind.TRIED}
        assert not is_settled(subject) or {make_recorded_plan((one,)).hash for one in SOUGHT} <= tried

    def applied(self, environment: str, standing: Sequence[Decision]) -> str | None:
        """The plan that whoever has just started applies, of those that were `standing`; it has been recorded."""
        new = [(event.kind, event.plan) for event in self.catch_up()]
        if not standing:
            assert new == []
            return None
        if datetime.now(UTC) - standing[0].recorded_at > timedelta(days=POLICY.decision_max_age_days):
            # What another policy has promoted is too old for this one alone.
            assert new == [(Kind.EXPIRED, standing[0].plan)] * (standing[0].policy == POLICY.hash)
            return None
        assert new == [(Kind.APPLIED, standing[0].plan)]
        return standing[0].plan

    @rule(
        target=processes,
        environment=st.sampled_from(ENVIRONMENTS),
        others=st.lists(st.sampled_from(Rank), min_size=1, max_size=3),
    )
    def ranks_start(self, environment: str, others: list[Rank]) -> MultipleResults[Process]:
        standing = self.standing(environment)
        kinds = [Rank.THE_SAME, *others]
        subjects = [self.subject_of(kind, environment, standing) for kind in kinds]
        plans = [self.plans_of(kind, subject, standing) for kind, subject in zip(kinds, subjects, strict=True)]
        said = agreed(subjects, plans, [kind is Rank.DEAD for kind in kinds])

        applied = self.applied(environment, standing)
        assert len({(one.plan, one.reason) for one in said}) == 1
        assert all(one.certain for one in said)
        if applied is not None and set(kinds) == {Rank.THE_SAME}:
            assert said[0].plan is not None
            made = PlanOffer.model_validate_json(said[0].plan).make_plan()
            assert made.hash == applied
            return multiple(
                *(Process(own, Promotion(made, subject)) for own, subject in zip(plans, subjects, strict=True))
            )
        assert said[0].plan is None
        return multiple()

    def subject_of(self, kind: Rank, environment: str, standing: Sequence[Decision]) -> Subject:
        """What a rank is asked about, with a ledger of its own if it has one."""
        if kind is Rank.ELSEWHERE:
            return self.subject("c" * 16)
        if kind is not Rank.DECIDED_AGAINST:
            return self.subject(environment)
        self.own_ledgers += 1
        place = parse_location(str(Path(self.folder) / f"rank-{self.own_ledgers}.sqlite3"))
        if standing:
            at = datetime.now(UTC)
            proposed = replace(standing[0], kind=Kind.PROPOSED, trial=None, recorded_at=at)
            tried = replace(proposed, kind=Kind.TRIED, trial=TRIAL)
            open_ledger(place).append([proposed, tried, replace(proposed, kind=Kind.REJECTED)])
        return Subject(place, SIGNATURE, environment, SETUP, POLICY)

    def plans_of(self, kind: Rank, subject: Subject, standing: Sequence[Decision]) -> PromotedPlans:
        """What a rank knows when it starts to compile."""
        plans = PromotedPlans()
        if kind is Rank.WITHDREW and standing:
            plans.record._withdrawn.add(Promotion(make_recorded_plan(standing[0].candidates), subject).key)
        return plans

    @rule(process=processes, harm=st.sampled_from(tuple(HARMS)))
    def it_runs(self, process: Process, harm: str) -> None:
        found = None if process.reasons else process.found
        stands = found is not None and any(
            event.plan == found.plan.hash for event in self.standing(found.subject.environment)
        )
        process.harm = harm
        for _ in range(CHECK_STEPS if harm == "none" else MOST_STEPS):
            process.run(X)
            if process.reasons and harm != "none":
                break
        new = [(event.kind, event.plan) for event in self.catch_up()]
        if found is None or harm == "none":
            assert new == []
            return
        assert len(process.reasons) == 1
        assert (harm == "slow") is ("times as long as the baseline" in process.reasons[0])
        # Where somebody was faster there is nothing left to record.
        assert new == ([(Kind.ROLLED_BACK, found.plan.hash)] if stands else [])
        assert process.runs_the_baseline()
        # Another plan may have been promoted since.
        again = process.plans.active.find(found.subject)
        assert again is None or again.plan.hash != found.plan.hash
        self.catch_up()

    @rule(process=consumes(processes))
    def it_crashes(self, process: Process) -> None:
        assert self.catch_up() == []

    @invariant()
    def what_was_rolled_back_never_runs(self) -> None:
        for environment in ENVIRONMENTS:
            found = self.ledger.read_promotions(SIGNATURE, environment)
            assert [event.decision.plan for event in found] == [event.plan for event in self.standing(environment)]


TestLives = pytest.mark.integration(pytest.mark.filterwarnings("ignore:frx")(Lives.TestCase))
TestLives.settings = settings(
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
