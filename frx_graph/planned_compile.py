"""How a graph reaches its inner compiler with a plan: Inductor by a pass of its own, the others through AOTAutograd.

Nothing here may break the user's program. A graph that cannot be rewritten is compiled as the inner compiler alone
would compile it, and the reason is told.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import SymInt, Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from torch._guards import CompileContext, TracingContext
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx.graph import _BoxedCodeGen
from torch.utils import _pytree as pytree

import frx_graph.passes
import frx_graph.rules
from frx_graph.anchor_times import call_seconds
from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.gradient_strides import correct_weight_gradients
from frx_graph.capture.whole_upsampling import whole_upsampling
from frx_graph.dynamo_rewriting import rewrite_dynamo_graph
from frx_graph.evidence.measurement_environment import measurement_environment
from frx_graph.frozen_weights import FrozenWeights, bind, freeze_weights
from frx_graph.passes.rewrites import DECIDE_LAYOUT, REWRITES
from frx_graph.passes.rewrites.folded_norms import fold_norms
from frx_graph.passes.rewrites.frozen_products import use_faster_products
from frx_graph.plan import Plan
from frx_graph.records import Candidate
from frx_graph.rewriting import RewrittenGraph, rewrite_graph
from frx_graph.traced_strides import NoteStrides, return_noted_strides

Compiled = Callable[..., Any]
Told = Callable[[RewrittenGraph], None]
Failed = Callable[[Exception], None]
IsConstant = Callable[[Tensor], bool]


class InductorPlan(CustomGraphPass):
    """Rewrites Inductor's graphs before its own passes see them; they are compiled with its layout choice off, which
    this turns on again for a graph that it has to leave alone.

    The caches of compiled graphs stay usable: `uuid` changes with whatever our decision depends on.
    """

    def __init__(self, policy: str, own_choice: bool, told: Told, failed: Failed) -> None:
        self._policy = policy
        self._own_choice = own_choice
        self._told = told
        self._failed = failed

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite one graph in place; on any failure leave it as it is."""
        inductor_config.layout_optimization = self._own_choice
        module = graph.owning_module
        if module is None:
            return
        try:
            done = _rewrite_for_inductor(module, self._policy)
        except Exception as error:  # noqa: BLE001 - any failure of ours falls back to the inner compiler
            self._failed(error)
            return
        decided = any(candidate.rewrite in DECIDE_LAYOUT for candidate in done.applied)
        inductor_config.layout_optimization = self._own_choice and not decided
        self._told(replace(done, plan=current_plan(self._policy).of_graph(done.signature, done.applied).hash))

    def uuid(self) -> Any:
        """What a compiled graph depends on besides itself: the plan, our code, and the machine that was measured."""
        return (current_plan(self._policy).hash, self._own_choice)


def current_plan(policy: str) -> Plan:
    """What `policy` ("all", "solved") stands for in this process; what is made of a graph depends on nothing else."""
    return Plan(
        policy=policy,
        rewrites=tuple(rewrite.name for rewrite in REWRITES),
        code=_code_hash(),
        machine=tuple(measurement_environment(device).fingerprint for device in ("cpu", "cuda")),
    )


def _rewrite_for_inductor(module: fx.GraphModule, plan: str) -> RewrittenGraph:
    placeholders = [node.name for node in module.graph.find_nodes(op="placeholder")]
    backward = any(name.startswith("tangents") for name in placeholders)
    if backward:
        return_noted_strides(module.graph)
    return rewrite_graph(
        module,
        graph_id=_graph_id(),
        phase=Phase.BACKWARD if backward else Phase.FORWARD,
        train=backward or any(name.startswith("primals") for name in placeholders),
        inner="inductor",
        plan=plan,
        static_inputs=_static_inputs(placeholders, backward),
        visible=_visible_outputs(module, backward),
    )


class FrozenPlan(CustomGraphPass):
    """What is left to choose in a graph that Inductor has frozen: its constants are packed, its layout is decided."""

    def __init__(self, told: Told, failed: Failed) -> None:
        self._told = told
        self._failed = failed

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite one graph in place; on any failure leave what is not rewritten yet as it is."""
        graph_id = _graph_id()
        try:
            applied = use_faster_products(graph, graph_id, lambda groups: call_seconds(groups, "cpu"))
        except Exception as error:  # noqa: BLE001 - any failure of ours falls back to the inner compiler
            self._failed(error)
            return
        self._told(RewrittenGraph(graph_id, Phase.FORWARD, () if applied is None else (applied,), ()))

    def uuid(self) -> Any:
        """What a compiled graph depends on besides itself: our code, and the machine that was measured."""
        return ("frozen", _code_hash(), measurement_environment("cpu").fingerprint)


def inductor_options(plan: str, options: Mapping[str, Any], told: Told, failed: Failed) -> dict[str, Any]:
    """Inductor's options with the plan in them; the user's own pass, if there is one, runs before ours."""
    own_choice = bool(options.get("layout_optimization", inductor_config.layout_optimization))
    ours = InductorPlan(plan, own_choice, told, failed)
    noting = options.get("joint_custom_pre_pass", inductor_config.joint_custom_pre_pass)
    return {
        **_with_pass(options, ours),
        "layout_optimization": False,
        "joint_custom_pre_pass": NoteStrides() if noting is None else [NoteStrides(), noting],
    }


def frozen_options(options: Mapping[str, Any], told: Told, failed: Failed) -> dict[str, Any]:
    """The same for a program that is compiled with `freezing`."""
    return _with_pass(options, FrozenPlan(told, failed))


def _with_pass(options: Mapping[str, Any], ours: CustomGraphPass) -> dict[str, Any]:
    own = options.get("post_grad_custom_pre_pass", inductor_config.post_grad_custom_pre_pass)
    return {**options, "post_grad_custom_pre_pass": ours if own is None else [own, ours]}


def rewritten_before(inner: Compiled, name: str, plan: str, told: Told, failed: Failed) -> Compiled:
    """The backend `inner`, called `name`, on Dynamo graphs that are rewritten before it sees them."""

    def compiled(dynamo: fx.GraphModule, example_inputs: Sequence[Any], **how: Any) -> Compiled:
        _rewrite_dynamo(dynamo, name, plan, told, failed)
        result: Compiled = inner(dynamo, example_inputs, **how)
        return result

    return compiled


def _rewrite_dynamo(dynamo: fx.GraphModule, inner: str, plan: str, told: Told, failed: Failed) -> None:
    try:
        done = rewrite_dynamo_graph(dynamo, inner=inner, plan=plan)
    except Exception as error:  # noqa: BLE001 - any failure of ours leaves the graph to the inner compiler as it was
        failed(error)
        return
    if done is not None:
        told(done)


class EagerPlan:
    """Compiles one Dynamo graph for eager execution: AOTAutograd's forward and backward, rewritten, run as they are.
    Weights of inference graphs that are `constant` become part of the graph; who calls it has to watch them."""

    def __init__(self, plan: str, told: Told, failed: Failed, *, constant: IsConstant = lambda _: False) -> None:
        self._plan = plan
        self._told = told
        self._failed = failed
        self._constant = constant

    def __call__(self, dynamo: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """The compiled graph, which takes what the Dynamo graph takes."""
        _rewrite_dynamo(dynamo, "eager", self._plan, self._told, self._failed)
        compiler = aot_autograd(
            fw_compiler=self._forward,
            bw_compiler=self._backward,
            inference_compiler=self._inference,
            partition_fn=_partition,
            keep_inference_input_mutations=True,
        )
        with whole_upsampling() if _may_upsample_whole(dynamo.graph) else contextlib.nullcontext():
            compiled: Compiled = compiler(dynamo, list(example_inputs))
        return compiled

    def _inference(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        frozen, folded = FrozenWeights(module.graph), None
        given = _given(module, inputs)
        if inductor_config.freezing:
            try:
                frozen = freeze_weights(module, self._constant)
                folded = fold_norms(module.graph, frozen, _graph_id())
            except Exception as error:  # noqa: BLE001 - any failure of ours leaves what is not folded yet as it is
                self._failed(error)
        self._rewrite(module, given, Phase.FORWARD, train=False, frozen=frozen, folded=folded)
        bind(module, frozen)
        return _boxed(module)

    def _forward(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        compiled = self._compiled(module, inputs, Phase.FORWARD, train=True)
        _report_output_strides(module)
        return compiled

    def _backward(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        return self._compiled(module, inputs, Phase.BACKWARD, train=True)

    def _compiled(self, module: fx.GraphModule, inputs: Sequence[Any], phase: Phase, *, train: bool) -> Compiled:
        self._rewrite(module, _given(module, inputs), phase, train=train, frozen=FrozenWeights(module.graph))
        return _boxed(module)

    def _rewrite(
        self,
        module: fx.GraphModule,
        given: Mapping[str, Tensor],
        phase: Phase,
        *,
        train: bool,
        frozen: FrozenWeights,
        folded: Candidate | None = None,
    ) -> None:
        placeholders = [node.name for node in module.graph.find_nodes(op="placeholder")]
        try:
            correct_weight_gradients(module.graph)
            done = rewrite_graph(
                module,
                graph_id=_graph_id(),
                phase=phase,
                train=train,
                inner="eager",
                plan=self._plan,
                static_inputs=_static_inputs(placeholders, phase is Phase.BACKWARD) | frozen.names,
                visible=_visible_outputs(module, phase is Phase.BACKWARD),
                given=given,
                frozen=frozen.names,
            )
        except Exception as error:  # noqa: BLE001 - any failure of ours falls back to the graph as it was traced
            self._failed(error)
            return
        applied = done.applied if folded is None else (folded, *done.applied)
        plan = current_plan(self._plan).of_graph(done.signature, applied).hash
        self._told(replace(done, applied=applied, plan=plan))


def _given(module: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, Tensor]:
    """The inputs whose strides are others than those that the graph was traced with, as they were traced; the graph's
    values become those that are given."""
    given = {}
    for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        traced = node.meta.get("val")
        if isinstance(value, Tensor) and isinstance(traced, Tensor) and value.stride() != traced.stride():
            given[node.name] = traced
            node.meta["val"] = value
    return given


def _may_upsample_whole(graph: fx.Graph) -> bool:
    """False for a graph with sizes that may change, which the operators that run whole would fix, and for one with a
    tensor without elements, whose fakes raise a `TypeError` (torch 2.15, `_meta_registrations.upsample_nearest2d`)."""
    values = pytree.tree_leaves([node.meta.get("example_value") for node in graph.nodes])
    sizes = [size for value in values if isinstance(value, Tensor) for size in value.shape]
    symbolic = any(isinstance(size, SymInt) for size in (*values, *sizes))
    return not symbolic and 0 not in sizes


def _partition(joint: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Saves what autograd would save: recomputing pays only where loops are fused."""
    for node in list(joint.graph.nodes):
        # What nobody reads but must run, as it draws random numbers, torch's partitioner takes for a tensor: seen with
        # `native_dropout`, torch 2.15.
        if node.op == "call_function" and not node.users and isinstance(node.meta.get("val"), (tuple, list)):
            with joint.graph.inserting_before(node.next):
                first = joint.graph.call_function(operator.getitem, (node, 0))
            first.meta["val"] = node.meta["val"][0]
    divided: tuple[fx.GraphModule, fx.GraphModule] = default_partition(joint, inputs, **how)
    return divided


def _boxed(module: fx.GraphModule) -> Compiled:
    """`module` as a function that takes all its arguments in one list, which it empties, as AOTAutograd prefers."""
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(arguments: list[Any]) -> Any:
        return forward(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]  # how AOTAutograd tells
    return run


def _outputs(module: fx.GraphModule) -> list[str]:
    """Names of the graph's outputs, in order; one that is no value has an empty name."""
    return [node.name if isinstance(node, fx.Node) else "" for node in _output_nodes(module)]


def _visible_outputs(module: fx.GraphModule, backward: bool) -> list[str]:
    """The outputs that the program sees; the others are saved for the backward, which is compiled for their strides."""
    context = TracingContext.try_get()
    outputs = _outputs(module)
    if backward or context is None or context.fw_metadata is None:
        return outputs
    metadata = context.fw_metadata
    return outputs[: len(metadata.tokens) + metadata.num_forward_returns]


def _output_nodes(module: fx.GraphModule) -> Sequence[Any]:
    outputs = module.graph.output_node().args[0]
    assert isinstance(outputs, (list, tuple)), "AOTAutograd's graphs return a flat list"
    return outputs


def _report_output_strides(module: fx.GraphModule) -> None:
    """Tell AOTAutograd how the forward's results lie in memory, so that the backward is compiled for what is saved."""
    context = TracingContext.try_get()
    if context is None or context.output_strides is None:
        return
    # Tokens of effects come first, and are not counted.
    tokens = 0 if context.fw_metadata is None else len(context.fw_metadata.tokens)
    for node in _output_nodes(module)[tokens:]:
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        context.output_strides.append(tuple(value.stride()) if isinstance(value, Tensor) else None)


def _static_inputs(placeholders: Sequence[str], backward: bool) -> frozenset[str]:
    """The placeholders of parameters and buffers. AOTAutograd numbers a forward's inputs and names what a backward has
    of them alike: `primals_3` is the third."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset()
    static = set(context.fw_metadata.static_input_indices)
    if backward:
        names = {f"primals_{index + 1}" for index in static}
        return frozenset(name for name in placeholders if name in names)
    return frozenset(name for index, name in enumerate(placeholders) if index in static)


def _graph_id() -> str:
    return str(CompileContext.current_compile_id() or "graph")


@functools.cache
def _code_hash() -> str:
    """Changes with any change of the package: a graph compiled by other code of ours is not the same."""
    digest = hashlib.sha256()
    for package in (frx_graph, frx_graph.passes, frx_graph.rules):
        for path in sorted(Path(package.__path__[0]).glob("**/*")):
            if path.suffix in (".py", ".yaml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
