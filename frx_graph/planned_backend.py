"""The inner compiler, alone or with the rewrites of a plan; what those did is kept in a log, mostly the process's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from frx_graph.aot_context import graph_id
from frx_graph.dynamo_rewriting import Compiled, Failed, rewritten_before
from frx_graph.eager_plan import EagerPlan
from frx_graph.inductor_plan import frozen_options, inductor_options
from frx_graph.options import BackendOptions
from frx_graph.plan import Plan
from frx_graph.rewrite_log import LOG, RewriteLog


def planned_backend(
    options: BackendOptions, plan: Plan | None, failed: Failed, log: RewriteLog | None = None
) -> Compiled:
    """What compiles a Dynamo graph as `plan` says, or as without us where there is none; `failed` is told of what could
    not be rewritten, `log`, by default the process's, of what was."""
    log = LOG if log is None else log
    if plan is None:
        return _alone(options)
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
        return EagerPlan(plan, LOG.add, failed, constant=constant)
    return _inductor(options, frozen_options(options.inner_options, LOG.add_cached, failed), plan, failed, LOG)


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
