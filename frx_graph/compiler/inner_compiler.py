"""Compile Dynamo graphs by the inner compiler, with or without a plan's rewrites; a log records the rewrites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.compiler_graphs import snapshot_dynamo_graph
from frx_graph.capture.kernel_strides import KernelStrides
from frx_graph.compiler.aot_context import get_graph_id
from frx_graph.compiler.eager import EagerPlan
from frx_graph.compiler.frozen_graph import FrozenGraph, IsConstant
from frx_graph.compiler.inductor import make_frozen_options, make_inductor_options
from frx_graph.compiler.pre_autograd import Compiled, OnFailure, rewrite_or_leave
from frx_graph.compiler.rewrite_log import LOG, RewriteLog
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.errors import summarize_error
from frx_graph.options import BackendOptions
from frx_graph.passes import inner_choice
from frx_graph.plan import Plan
from frx_graph.records import Refusal
from frx_graph.support.allocator import pool_allocations
from frx_graph.support.torch_internals import InductorBackend, RestartAnalysis, lookup_backend


def make_planned_backend(
    options: BackendOptions, plan: Plan | None, on_failure: OnFailure, log: RewriteLog | None = None
) -> Compiled:
    """Return a compiler that applies `plan`, or the baseline compiler if there is none.

    `on_failure` receives graphs that could not be rewritten. `log`, by default the process's, records the rewrites.
    """
    log = LOG if log is None else log
    if plan is None:
        return _make_baseline_compiler(options)
    if plan.can_make(inner_choice.NAME):
        return _make_chosen_compiler(options, plan, on_failure, log)
    return _add_fallback(
        _make_rewriting_compiler(options, plan, on_failure, log), _make_baseline_compiler(options), on_failure, log
    )


def _make_chosen_compiler(options: BackendOptions, plan: Plan, on_failure: OnFailure, log: RewriteLog) -> Compiled:
    """Return a compiler with the inner compiler and options that the plan has recorded."""
    chosen = plan.select_candidates(inner_choice.EVERY_GRAPH, inner_choice.NAME)
    own = options.model_copy(update=inner_choice.get_choice_options(chosen[0]))
    rest = replace(plan, rewrites=tuple(name for name in plan.rewrites if name != inner_choice.NAME))
    baseline = _make_baseline_compiler(options)

    def compile_frozen(constant: IsConstant) -> Compiled:
        return _make_freezing_compiler(own, rest, constant, on_failure, log)

    def compile_and_log(dynamo: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        if own.pool_allocations:
            pool_allocations(by_plan=True)
        if own.freeze:
            compiled: Any = FrozenGraph(dynamo, inputs, compile_frozen, baseline)
        else:
            compiled = (
                _make_rewriting_compiler(own, rest, on_failure, log) if rest.rewrites else _make_baseline_compiler(own)
            )(dynamo, inputs, **how)
        log.add(RewrittenGraph(get_graph_id(), Phase.FORWARD, chosen, (), plan=plan.hash))
        return compiled

    return _add_fallback(compile_and_log, baseline, on_failure, log)


def _add_fallback(planned: Compiled, baseline: Compiled, on_failure: OnFailure, log: RewriteLog) -> Compiled:
    """Compile by `planned`, or by `baseline` if `planned` fails; then log the failure and call `on_failure`."""

    def compile_or_leave(dynamo: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        before = snapshot_dynamo_graph(dynamo)
        try:
            return planned(dynamo, inputs, **how)
        except RestartAnalysis:
            # No failure: Dynamo traces the frame once more, and calls this again.
            raise
        except Exception as error:  # noqa: BLE001 - the baseline raises the program's own errors again
            failure = error.with_traceback(None)
        # Outside the handler, so that an error of the baseline does not name the failure as its context.
        compiled = baseline(before(), inputs, **how)
        refusal = Refusal("plan", f"the graph could not be compiled with it: {summarize_error(failure)}")
        log.add(RewrittenGraph(get_graph_id(), Phase.FORWARD, (), (refusal,)))
        on_failure(failure)
        return compiled

    return compile_or_leave


def _make_rewriting_compiler(options: BackendOptions, plan: Plan, on_failure: OnFailure, log: RewriteLog) -> Compiled:
    if options.inner == "inductor":
        planned = make_inductor_options(plan, options.inner_options, log.add_cached, on_failure)
        return _make_rewriting_inductor(options, planned, plan, on_failure, log)
    return EagerPlan(plan, log.add, on_failure)


def make_frozen_planned_backend(
    options: BackendOptions, plan: Plan | None, constant: IsConstant, on_failure: OnFailure
) -> Compiled:
    """Return a compiler of programs with frozen weights, which applies `plan` if there is one.

    `constant` returns whether a weight is guarded; Inductor freezes others as well.
    """
    if plan is None:
        return _make_baseline_compiler(options)
    planned = _make_freezing_compiler(options, plan, constant, on_failure, LOG)
    return _add_fallback(planned, _make_baseline_compiler(options), on_failure, LOG)


def _make_freezing_compiler(
    options: BackendOptions, plan: Plan, constant: IsConstant, on_failure: OnFailure, log: RewriteLog
) -> Compiled:
    if options.inner == "eager":
        return EagerPlan(plan, log.add, on_failure, constant=constant)
    if not plan.rewrites:
        return _make_baseline_compiler(options)
    planned = make_frozen_options(plan, options.inner_options, log.add_cached, on_failure)
    return _make_rewriting_inductor(options, planned, plan, on_failure, log)


def _make_baseline_compiler(options: BackendOptions) -> Compiled:
    if options.inner == "inductor":
        # torch's own wrapper validates mode and options and patches the configuration as backend="inductor" does.
        return InductorBackend(options.inner_mode, dict(options.inner_options), None)
    found: Compiled = lookup_backend(options.inner)
    return found


def _make_rewriting_inductor(
    options: BackendOptions, planned: dict[str, Any], plan: Plan, on_failure: OnFailure, log: RewriteLog
) -> Compiled:
    """Return Inductor with the plan's passes; rewrites of a graph that it finds in its cache are logged, too."""
    inductor = InductorBackend(options.inner_mode, planned, None)

    def compile_and_collect(dynamo: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        rewrite_or_leave(dynamo, "inductor", plan, log.add, on_failure)
        log.collect()
        with KernelStrides():
            compiled = inductor(dynamo, inputs, **how)
        log.collect(get_graph_id())
        return compiled

    return compile_and_collect
