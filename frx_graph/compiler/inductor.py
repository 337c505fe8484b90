"""Rewrite Inductor's graphs in a custom pass, before its other passes.

Nothing here may break the user's program. A graph that cannot be rewritten is compiled as Inductor alone would compile
it, and the reason is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.graph_signature import hash_graph
from frx_graph.capture.stride_table import load_stride_table
from frx_graph.compiler.aot_context import get_graph_id, list_weight_inputs
from frx_graph.compiler.operator_times import list_known_bandwidths, time_calls
from frx_graph.compiler.pre_autograd import OnFailure, OnRewrite
from frx_graph.compiler.rewrite_pipeline import (
    RewrittenGraph,
    rewrite_before_freezing,
    rewrite_graph,
    rollback_on_error,
)
from frx_graph.ops.onednn.library import find_library
from frx_graph.passes.rewrites import DECIDE_LAYOUT
from frx_graph.passes.rewrites.frozen_products import NAME as FROZEN_PRODUCTS
from frx_graph.passes.rewrites.frozen_products import use_faster_products, use_recorded_products
from frx_graph.passes.rewrites.meta_strides.preserve_output_strides import RecordStrides, return_recorded_strides
from frx_graph.passes.rewrites.onednn_regions import NAME as ONEDNN_REGIONS
from frx_graph.plan import RECORDED, Plan
from frx_graph.support.torch_internals import CustomGraphPass, inductor_config


@dataclass(frozen=True, eq=False)
class InductorPlan(CustomGraphPass):
    """Rewrites Inductor's graphs before its own passes see them.

    Graphs are compiled with Inductor's layout choice off; this turns it on again for a graph that keeps its layout.
    Caches of compiled graphs stay valid: `uuid` changes with everything that the rewrites depend on.
    """

    plan: Plan
    own_choice: bool
    on_rewrite: OnRewrite
    on_failure: OnFailure

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite one graph in place; on any failure leave it as it is."""
        inductor_config.layout_optimization = self.own_choice
        module = graph.owning_module
        if module is None:
            return
        try:
            with rollback_on_error(module):
                done = _rewrite_for_inductor(module, self.plan)
        except Exception as error:  # noqa: BLE001 - any failure of this package falls back to the inner compiler
            self.on_failure(error)
            return
        decided = any(candidate.rewrite in DECIDE_LAYOUT for candidate in done.applied)
        inductor_config.layout_optimization = self.own_choice and not decided
        self.on_rewrite(replace(done, plan=self.plan.bind_to_graph(done.signature, done.applied).hash))

    def uuid(self) -> Any:
        """Return what a compiled graph depends on besides itself: the plan, this code, the machine, its bandwidth, and
        which kernels' strides are corrected.

        Single measured times are not part of it: a decision that they led to is kept.
        """
        bandwidths = self.plan.measures and list_known_bandwidths()
        listed = tuple(sorted((name, tuple(sorted(kinds))) for name, kinds in load_stride_table().differ.items()))
        return (self.plan.hash, self.own_choice, bandwidths, listed)


def _rewrite_for_inductor(module: fx.GraphModule, plan: Plan) -> RewrittenGraph:
    placeholders = [node.name for node in module.graph.find_nodes(op="placeholder")]
    backward = any(name.startswith("tangents") for name in placeholders)
    if backward:
        return_recorded_strides(module.graph)
    return rewrite_graph(
        module,
        phase=Phase.BACKWARD if backward else Phase.FORWARD,
        train=backward or any(name.startswith("primals") for name in placeholders),
        inner="inductor",
        plan=plan,
    )


@dataclass(frozen=True, eq=False)
class FrozenPlan(CustomGraphPass):
    """Chooses faster products in a graph that Inductor has frozen: constants are packed, the layout is decided."""

    plan: Plan
    on_rewrite: OnRewrite
    on_failure: OnFailure

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite one graph in place; on any failure leave the rest of it as it is."""
        if not self.plan.can_make(FROZEN_PRODUCTS):
            return
        compiling = get_graph_id()
        try:
            signature = hash_graph(graph)
            if self.plan.policy == RECORDED:
                applied = self.plan.select_candidates(signature, FROZEN_PRODUCTS)
                for candidate in applied:
                    use_recorded_products(graph, candidate)
            else:
                found = use_faster_products(graph, compiling, lambda groups: time_calls(groups, "cpu"))
                applied = () if found is None else (found,)
        except Exception as error:  # noqa: BLE001 - any failure of this package falls back to the inner compiler
            self.on_failure(error)
            return
        plan = self.plan.bind_to_graph(signature, applied).hash
        self.on_rewrite(RewrittenGraph(compiling, Phase.FORWARD, applied, (), signature=signature, plan=plan))

    def uuid(self) -> Any:
        """Return what a compiled graph depends on besides itself: the plan, which changes with this code and, if times
        are measured, with the machine."""
        return ("frozen", self.plan.hash)


@dataclass(frozen=True, eq=False)
class BeforeFreezing(CustomGraphPass):
    """Rewrites a graph before Inductor makes its weights constants, and computes what depends on them alone."""

    plan: Plan
    on_rewrite: OnRewrite
    on_failure: OnFailure

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite one graph in place; on any failure leave it as it is."""
        module = graph.owning_module
        if module is None:
            return
        try:
            with rollback_on_error(module):
                done = rewrite_before_freezing(module, self.plan, list_weight_inputs(module))
        except Exception as error:  # noqa: BLE001 - any failure of this package falls back to the inner compiler
            self.on_failure(error)
            return
        self.on_rewrite(replace(done, plan=self.plan.bind_to_graph(done.signature, done.applied).hash))

    def uuid(self) -> Any:
        """Return what a compiled graph depends on besides itself: the plan, which changes with this code, and whether
        oneDNN can be called."""
        library = find_library() if self.plan.can_make(ONEDNN_REGIONS) else ""
        return ("unfrozen", self.plan.hash, "" if isinstance(library, str) else library.version)


def make_inductor_options(
    plan: Plan, options: Mapping[str, Any], on_rewrite: OnRewrite, on_failure: OnFailure
) -> dict[str, Any]:
    """Return Inductor's options with the plan's passes; the user's pass runs before them."""
    own_choice = bool(options.get("layout_optimization", inductor_config.layout_optimization))
    ours = InductorPlan(plan, own_choice, on_rewrite, on_failure)
    noting = _get_option(options, "joint_custom_pre_pass")
    return {
        **_add_pass(options, ours),
        "layout_optimization": False,
        "joint_custom_pre_pass": RecordStrides() if noting is None else [RecordStrides(), noting],
    }


def make_frozen_options(
    plan: Plan, options: Mapping[str, Any], on_rewrite: OnRewrite, on_failure: OnFailure
) -> dict[str, Any]:
    """Return Inductor's options for a program that is compiled with `freezing`; the user's passes run first."""
    first, own = BeforeFreezing(plan, on_rewrite, on_failure), _get_option(options, "joint_custom_pre_pass")
    return {
        **_add_pass(options, FrozenPlan(plan, on_rewrite, on_failure)),
        "joint_custom_pre_pass": first if own is None else [own, first],
    }


def _add_pass(options: Mapping[str, Any], ours: CustomGraphPass) -> dict[str, Any]:
    own = _get_option(options, "post_grad_custom_pre_pass")
    return {**options, "post_grad_custom_pre_pass": ours if own is None else [own, ours]}


def _get_option(options: Mapping[str, Any], name: str) -> Any:
    return options.get(name, getattr(inductor_config, name))
