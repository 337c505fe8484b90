"""Rewrite one graph of an inner compiler: facts, measured times, candidates, changes."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from torch import Tensor, fx

from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.compiler_graphs import refresh_captured, wrap_aot_graph
from frx_graph.capture.gradient_strides import correct_weight_gradients
from frx_graph.capture.graph_signature import hash_graph
from frx_graph.compiler.aot_context import (
    find_static_inputs,
    find_visible_outputs,
    get_graph_id,
    list_output_names,
    list_output_strides,
)
from frx_graph.compiler.operator_times import add_measured_times, find_device_type, time_under_load
from frx_graph.compiler.program_prices import RewritePrices
from frx_graph.errors import RewriteError
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.inner_choice import get_layout_choice, propose_inner_choices
from frx_graph.passes.layouts.inductor_layout import is_channels_last_forced
from frx_graph.passes.rewrites import BEFORE_FREEZING, MEET_INPUTS, REWRITES
from frx_graph.passes.rewrites.layout.assignment import adapt_to_inputs
from frx_graph.passes.rewrites.meta_strides.fix_view_strides import fix_view_storages, fix_view_strides
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.plan import RECORDED, Plan
from frx_graph.records import Candidate, Refusal
from frx_graph.support.allocator import read_allocation

_LEAST_LOSS = 0.005
"""Share of a run from which a predicted loss counts: less is an error of the times that it rests on."""


@dataclass(frozen=True)
class RewrittenGraph:
    """The rewrites of one graph: candidates that were applied, and refusals.

    `conversions` names the inserted copies. `signature` belongs to the graph before the rewrite, `plan` is the hash of
    the plan. Only a trial can judge the `untried` candidates: measured operators cannot. `doubtful` names the traced
    outputs whose strides may differ from those of their fakes, `misread` those that differ and were not moved.
    `run_seconds` is the price of a run without rewrites, if times were measured; not if they were `disturbed`.
    """

    graph_id: str
    phase: Phase
    applied: tuple[Candidate, ...]
    refused: tuple[Refusal, ...]
    conversions: tuple[str, ...] = ()
    signature: str = ""
    plan: str = ""
    untried: tuple[Candidate, ...] = ()
    doubtful: tuple[str, ...] = ()
    misread: tuple[str, ...] = ()
    run_seconds: float | None = None
    disturbed: bool = False

    def mark_undone(self, reason: str) -> RewrittenGraph:
        """Return the record of a graph whose rewrites were undone for `reason`."""
        refused = tuple(Refusal(candidate.rewrite, reason, candidate.nodes) for candidate in self.applied)
        return replace(self, applied=(), refused=refused, conversions=())


@contextlib.contextmanager
def rollback_on_error(module: fx.GraphModule) -> Iterator[fx.Graph]:
    """Yield a copy of the graph of `module`, which replaces it if the block raises; values of nodes are not copied."""
    before = copy.deepcopy(module.graph)
    try:
        yield before
    except Exception:
        module.graph = before
        raise


def rewrite_graph(
    module: fx.GraphModule,
    *,
    phase: Phase,
    train: bool,
    inner: str,
    plan: Plan,
    original_inputs: Mapping[str, Tensor] = MappingProxyType({}),
    frozen: Collection[str] = (),
    uncertain_inputs: Collection[str] = (),
) -> RewrittenGraph:
    """Apply to `module`, in place, the rewrites that `plan` chooses or names.

    `original_inputs` holds the traced values of inputs whose actual strides differ: the graph is changed to run on
    those. `frozen` names inputs that are constants, `uncertain_inputs` those whose strides may differ from their
    fakes'.

    With the policy "solved", an inference graph whose rewrites together are predicted to lose time is given back, and
    rewritten without the one that loses most. One with frozen weights is not: its caller holds the graph's nodes.
    """
    given_back: list[Refusal] = []
    while True:
        may_lose = train or bool(frozen) or plan.policy != "solved"
        before = None if may_lose else copy.deepcopy(module.graph)
        done = _rewrite_once(module, phase, train, inner, plan, original_inputs, frozen, uncertain_inputs)
        loser = None if before is None else _find_loser(done)
        if before is None or loser is None:
            return replace(done, refused=(*done.refused, *given_back))
        module.graph = before
        lost = {node for one in done.applied if one.rewrite == loser for node in one.nodes}
        nodes = tuple(node.name for node in before.nodes if node.name in lost)
        given_back.extend(refusal for refusal in done.refused if refusal.subject == loser)
        given_back.append(Refusal(loser, "the graph with it is predicted to be slower than without", nodes))
        plan = replace(plan, rewrites=tuple(name for name in plan.rewrites if name != loser))


def _find_loser(done: RewrittenGraph) -> str | None:
    """Return the rewrite that loses most time, if all together lose some; None if not, or if that is not known."""
    gains: dict[str, float] = {}
    for candidate in done.applied:
        if candidate.predicted_seconds is None:
            return None
        gains[candidate.rewrite] = gains.get(candidate.rewrite, 0.0) + candidate.predicted_seconds
    if done.disturbed or done.run_seconds is None or sum(gains.values()) >= -_LEAST_LOSS * done.run_seconds:
        return None
    return min(gains, key=lambda name: gains[name])


def _rewrite_once(
    module: fx.GraphModule,
    phase: Phase,
    train: bool,
    inner: str,
    plan: Plan,
    original_inputs: Mapping[str, Tensor],
    frozen: Collection[str],
    uncertain_inputs: Collection[str],
) -> RewrittenGraph:
    unmet = dict(original_inputs)
    graph_id, outputs = get_graph_id(), list_output_names(module)
    observable_outputs = find_visible_outputs(module, phase is Phase.BACKWARD)
    static_inputs = find_static_inputs(module, phase is Phase.BACKWARD).union(frozen)
    seen = [name in observable_outputs for name in outputs]
    signature = hash_graph(module.graph)
    traced = as_run = list_output_strides(module)
    if inner == "eager":
        fix_view_strides(module.graph, original_inputs)
        as_run = list_output_strides(module)
    correct_weight_gradients(module.graph)
    captured = wrap_aot_graph(module, graph_id=graph_id, phase=phase, train=train, static_inputs=static_inputs)
    facts = build_graph_facts(captured)
    subject = RewriteSubject(
        facts=facts,
        phase=phase,
        inner=inner,
        everything=plan.policy == "all",
        observable_outputs=frozenset(observable_outputs),
        original_inputs=original_inputs,
        frozen=frozenset(frozen),
        uncertain_inputs=frozenset(uncertain_inputs),
    )
    solved = plan.measures
    if solved:
        subject = add_measured_times(subject)
    laid_out = is_channels_last_forced(facts, phase, inner)
    choices = propose_inner_choices(facts, inner, channels_last=laid_out, allocation=read_allocation())
    untried = tuple(choice for choice in choices if isinstance(choice, Candidate))
    prices = RewritePrices.start(subject) if solved else None
    applied: list[Candidate] = []
    refused: list[Refusal] = []
    conversions: list[str] = []
    for rewrite in REWRITES:
        if not plan.can_make(rewrite.name):
            continue
        if solved:
            timed, loaded = time_under_load(rewrite.asks(subject), find_device_type(facts))
            subject = replace(subject, timed=timed)
            if prices is not None:
                prices.disturbed = prices.disturbed or loaded
        made, inserted, left = _apply_rewrite(rewrite, subject, module, plan, signature)
        conversions.extend(inserted)
        refused.extend(left)
        if made and rewrite.name in MEET_INPUTS:
            unmet.clear()
        if made:
            # The next rewrite reads the graph as this one has left it.
            fix_view_storages(module.graph)
            correct_weight_gradients(module.graph)
            subject = replace(
                subject,
                facts=build_graph_facts(refresh_captured(captured)),
                original_inputs=dict(unmet),
                # An output may be a conversion now, with another name.
                observable_outputs=frozenset(itertools.compress(list_output_names(module), seen)),
            )
            applied.extend(made)
            if prices is not None:
                prices.add(made, subject)
    run_seconds = None
    if prices is not None:
        predicted, run_seconds = prices.predict(subject)
        applied = list(predicted)
        untried = tuple(_predict_choice(choice, prices, facts, subject, run_seconds) for choice in untried)
    if unmet:
        conversions.extend(adapt_to_inputs(subject, module))
    lies_otherwise = [name in subject.doubtful for name in list_output_names(module)]
    strides = zip(traced, as_run, list_output_strides(module), strict=True)
    misread = [fake != real == now for fake, real, now in strides]
    return RewrittenGraph(
        graph_id,
        phase,
        tuple(applied),
        tuple(refused),
        tuple(conversions),
        signature,
        untried=untried,
        run_seconds=run_seconds,
        disturbed=prices is not None and prices.disturbed,
        doubtful=tuple(itertools.compress(outputs, lies_otherwise)),
        misread=tuple(itertools.compress(outputs, misread)),
    )


def rewrite_before_freezing(module: fx.GraphModule, plan: Plan, frozen: Collection[str]) -> RewrittenGraph:
    """Apply to `module`, in place, the rewrites that help whatever Inductor makes of a graph with frozen weights.

    `frozen` names the inputs that become constants. Nothing is measured.
    """
    graph_id, signature = get_graph_id(), hash_graph(module.graph)
    captured = wrap_aot_graph(module, graph_id=graph_id, phase=Phase.FORWARD, train=False, static_inputs=set(frozen))
    applied: list[Candidate] = []
    refused: list[Refusal] = []
    for rewrite in BEFORE_FREEZING:
        if not plan.can_make(rewrite.name):
            continue
        subject = RewriteSubject(
            facts=build_graph_facts(captured),
            phase=Phase.FORWARD,
            inner="inductor",
            frozen=frozenset(frozen),
        )
        made, _, left = _apply_rewrite(rewrite, subject, module, plan, signature)
        applied.extend(made)
        refused.extend(left)
        captured = refresh_captured(captured)
    return RewrittenGraph(graph_id, Phase.FORWARD, tuple(applied), tuple(refused), signature=signature)


def _apply_rewrite(
    rewrite: Rewrite, subject: RewriteSubject, module: fx.GraphModule, plan: Plan, signature: str
) -> tuple[list[Candidate], list[str], list[Refusal]]:
    """Apply what `plan` chooses of one rewrite. Return the candidates, the inserted copies, and the refusals."""
    recorded = plan.policy == RECORDED
    made: list[Candidate] = []
    inserted: list[str] = []
    refused: list[Refusal] = []
    for outcome in plan.select_candidates(signature, rewrite.name) if recorded else rewrite.propose(subject):
        if isinstance(outcome, Refusal):
            refused.append(outcome)
            continue
        try:
            inserted.extend(rewrite.apply(subject, module, outcome))
        except RewriteError as error:
            refused.append(Refusal(rewrite.name, str(error), outcome.nodes))
        else:
            made.append(outcome)
    return made, inserted, refused


def _predict_choice(
    choice: Candidate, prices: RewritePrices, facts: GraphFacts, subject: RewriteSubject, run_seconds: float | None
) -> Candidate:
    """Return an inner choice with what it saves, if it only decides the layout of convolutions."""
    lays_out = get_layout_choice(choice)
    if lays_out is None:
        return choice
    saved = prices.predict_choice(facts, subject, channels_last=lays_out)
    return replace(choice, predicted_seconds=saved, run_seconds=run_seconds)
