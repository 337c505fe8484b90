"""Price a graph before and after each rewrite, under its inner compiler, and predict from that what each saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler.operator_times import find_device_type, time_under_load
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.passes.layouts.inductor_layout import is_channels_last_forced
from frx_graph.passes.pricing.program_price import PricedProgram, build_priced_program, price_gain
from frx_graph.passes.rewrites import DECIDE_LAYOUT
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Candidate


@dataclass
class RewritePrices:
    """The programs that a graph is before its first rewrite and after each.

    `add` is called after each rewrite with the candidates that it applied, and the graph as it has left it. The gains
    of all add up to that of the last program over the first. `disturbed` is True once other programs have disturbed
    times that prices rest on.
    """

    phase: Phase
    before: PricedProgram
    disturbed: bool = False
    _steps: list[tuple[tuple[Candidate, ...], PricedProgram]] = field(default_factory=list)
    _decided: bool = False
    _timed: dict[OperatorSignature, float] = field(default_factory=dict)

    @classmethod
    def start(cls, subject: RewriteSubject) -> RewritePrices:
        """Return the prices of a graph before its first rewrite."""
        return cls(subject.phase, build_program(subject, is_forced(subject.facts, subject.phase, subject.inner)))

    def add(self, applied: Iterable[Candidate], subject: RewriteSubject) -> None:
        """Add the program that one rewrite made."""
        made = tuple(applied)
        # The times that the decision rests on: on a busy machine they are not stored, and would be others now.
        self._timed = {**subject.timed, **self._timed}
        self._decided = self._decided or any(candidate.rewrite in DECIDE_LAYOUT for candidate in made)
        forced = not self._decided and is_forced(subject.facts, self.phase, subject.inner)
        self._steps.append((made, build_program(subject, forced)))

    def predict(self, subject: RewriteSubject) -> tuple[tuple[Candidate, ...], float | None]:
        """Return the candidates with their gains, and the seconds of a run before the first rewrite.

        Both are None if the bandwidth is unknown. A gain is None if it rests on a call that could not be timed, the run
        if times were disturbed: gains then only order what is tried. Candidates of one rewrite share its gain equally.
        """
        programs = (self.before, *(program for _, program in self._steps))
        bandwidth = subject.bandwidth_bytes_per_s
        if bandwidth is None:
            return tuple(replace(one, predicted_seconds=None) for made, _ in self._steps for one in made), None
        timed = self._time(programs, subject)
        run = None if self.disturbed else self.before.sum_seconds(timed, bandwidth)
        priced: list[Candidate] = []
        for (made, program), last in zip(self._steps, programs, strict=False):
            gain = price_gain(last, program, timed, bandwidth)
            share = None if gain is None else gain / len(made)
            priced.extend(replace(one, predicted_seconds=share, run_seconds=run) for one in made)
        return tuple(priced), run

    def _time(self, programs: Sequence[PricedProgram], subject: RewriteSubject) -> Mapping[OperatorSignature, float]:
        calls = group_calls(programs)
        missing = [group for group in calls if not self._timed.keys() >= set(group)]
        taken, disturbed = time_under_load(missing, find_device_type(subject.facts))
        self.disturbed = self.disturbed or disturbed
        self._timed = {**taken, **self._timed}
        return self._timed

    def predict_choice(self, facts: GraphFacts, subject: RewriteSubject, *, channels_last: bool) -> float | None:
        """Return what a run of the traced graph saves if Inductor's layout choice is `channels_last`."""
        bandwidth = subject.bandwidth_bytes_per_s
        if bandwidth is None:
            return None
        other = build_program(replace(subject, facts=facts), channels_last)
        timed = self._time((self.before, other), subject)
        return price_gain(self.before, other, timed, bandwidth)


def is_forced(facts: GraphFacts, phase: Phase, inner: str) -> bool:
    """Return True if the inner compiler's own rules run all convolutions of the graph in channels-last."""
    return is_channels_last_forced(facts, phase, inner)


def build_program(subject: RewriteSubject, channels_last: bool) -> PricedProgram:
    """Return what a run of the subject's graph consists of."""
    return build_priced_program(
        subject.facts,
        subject.inner,
        channels_last=channels_last,
        loop_seconds=subject.loop_seconds,
        constants=subject.constants,
    )


def group_calls(programs: Sequence[PricedProgram]) -> tuple[tuple[OperatorSignature, ...], ...]:
    """Return the calls to time. Calls that differ only in strides are one group: they are compared."""
    groups: dict[object, dict[OperatorSignature, None]] = {}
    for program in programs:
        for call in program.calls:
            shapes = tuple((tensor.shape, tensor.dtype) for tensor in call.tensors)
            groups.setdefault((call.target, shapes), {})[call] = None
    return tuple(tuple(group) for group in groups.values())
