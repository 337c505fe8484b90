"""The inner compiler, alone or with the rewrites of a plan; what those did is kept in a log, mostly the process's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.exc import RestartAnalysis

from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.graph_copy import graph_as_it_was
from frx_graph.compiler.aot_context import graph_id
from frx_graph.compiler.eager import EagerPlan
from frx_graph.compiler.frozen_graph import FrozenGraph, IsConstant
from frx_graph.compiler.inductor import frozen_options, inductor_options
from frx_graph.compiler.pre_autograd import Compiled, Failed, rewritten_before
from frx_graph.compiler.rewrite_log import LOG, RewriteLog
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.errors import first_line
from frx_graph.options import BackendOptions
from frx_graph.passes import inner_choice
from frx_graph.plan import Plan
from frx_graph.records import Refusal


def planned_backend(
    options: BackendOptions, plan: Plan | None, failed: Failed, log: RewriteLog | None = None
) -> Compiled:
    """What compiles a Dynamo graph as `plan` says, or as without us where there is none; `failed` is told of what could
    not be rewritten, `log`, by default the process's, of what was."""
    log = LOG if log is None else log
    if plan is None:
        return _alone(options)
    if plan.may_make(inner_choice.NAME):
        return _chosen(options, plan, failed, log)
    return _or_alone(_rewriting(options, plan, failed, log), _alone(options), failed, log)


def _chosen(options: BackendOptions, plan: Plan, failed: Failed, log: RewriteLog) -> Compiled:
    """What compiles graphs by the inner compiler, and with the options for it, that the plan has recorded."""
    chosen = plan.recorded_for(inner_choice.EVERY_GRAPH, inner_choice.NAME)
    own = options.model_copy(update=inner_choice.options_of(chosen[0]))
    rest = replace(plan, rewrites=tuple(name for name in plan.rewrites if name != inner_choice.NAME))
    alone = _alone(options)

    def frozen(constant: IsConstant) -> Compiled:
        return EagerPlan(rest, log.add, failed, constant=constant) if own.inner == "eager" else _alone(own)

    def compile_and_tell(dynamo: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        if own.freeze:
            compiled: Any = FrozenGraph(dynamo, inputs, frozen, alone)
        else:
            compiled = (_rewriting(own, rest, failed, log) if rest.rewrites else _alone(own))(dynamo, inputs, **how)
        log.add(RewrittenGraph(graph_id(), Phase.FORWARD, chosen, (), plan=plan.hash))
        return compiled

    return _or_alone(compile_and_tell, alone, failed, log)


def _or_alone(planned: Compiled, alone: Compiled, failed: Failed, log: RewriteLog) -> Compiled:
    """`planned`; a graph that it cannot compile and `alone` can is compiled by that, which is noted, and `failed` is
    told."""

    def compile_or_leave(dynamo: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        before = graph_as_it_was(dynamo)
        try:
            return planned(dynamo, inputs, **how)
        except RestartAnalysis:
            # No failure: Dynamo traces the frame once more, and comes back.
            raise
        except Exception as error:  # noqa: BLE001 - what is the program's own, the baseline raises again
            failure = error.with_traceback(None)
        # Behind the handler: what the baseline raises has nothing to do with our failure.
        compiled = alone(before(), inputs, **how)
        log.add(RewrittenGraph(graph_id(), Phase.FORWARD, (), (_not_compiled(failure),)))
        failed(failure)
        return compiled

    return compile_or_leave


def _not_compiled(error: Exception) -> Refusal:
    return Refusal("plan", f"the graph could not be compiled with it: {first_line(error)}")


def _rewriting(options: BackendOptions, plan: Plan, failed: Failed, log: RewriteLog) -> Compiled:
    if options.inner == "inductor":
        planned = inductor_options(plan, options.inner_options, log.add_cached, failed)
        return _inductor(options, planned, plan, failed, log)
    return EagerPlan(plan, log.add, failed)


def frozen_planned_backend(
    options: BackendOptions, plan: Plan | None, constant: Callable[[Tensor], bool], failed: Failed
) -> Compiled:
    """What compiles a program whose weights are frozen, with the rewrites of a plan if there is one. `constant` says of
    a weight whether somebody watches it; Inductor freezes others as well."""
    if plan is None:
        return _alone(options)
    if options.inner == "eager":
        planned: Compiled = EagerPlan(plan, LOG.add, failed, constant=constant)
    else:
        planned = _inductor(options, frozen_options(options.inner_options, LOG.add_cached, failed), plan, failed, LOG)
    return _or_alone(planned, _alone(options), failed, LOG)


def _alone(options: BackendOptions) -> Compiled:
    if options.inner == "inductor":
        # torch's own wrapper validates mode and options and patches the configuration as backend="inductor" does.
        return torch._TorchCompileInductorWrapper(options.inner_mode, dict(options.inner_options), None)
    found: Compiled = torch._dynamo.lookup_backend(options.inner)
    return found


def _inductor(
    options: BackendOptions, planned: dict[str, Any], plan: Plan, failed: Failed, log: RewriteLog
) -> Compiled:
    inductor = _collecting(torch._TorchCompileInductorWrapper(options.inner_mode, planned, None), log)
    return rewritten_before(inductor, "inductor", plan, log.add, failed)


def _collecting(inner: Compiled, log: RewriteLog) -> Compiled:
    """`inner`, which may find a graph compiled: what was done to that one is then noted, too."""

    def compile_and_collect(*args: Any, **kwargs: Any) -> Any:
        log.collect()
        compiled = inner(*args, **kwargs)
        log.collect(graph_id())
        return compiled

    return compile_and_collect
