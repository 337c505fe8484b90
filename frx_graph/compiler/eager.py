"""Compile a Dynamo graph for eager execution: AOTAutograd's graphs, rewritten, and run as they are."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, fx

from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.kernel_strides import KernelStrides, merge_forced_strides
from frx_graph.capture.whole_upsampling import can_upsample_whole, keep_upsampling_whole
from frx_graph.compiler.aot_context import get_graph_id, report_output_strides
from frx_graph.compiler.fallback import FallbackState, GuardedGraph
from frx_graph.compiler.pre_autograd import Compiled, OnFailure, OnRewrite, rewrite_or_leave
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph, rewrite_graph, rollback_on_error
from frx_graph.errors import is_out_of_memory, summarize_error
from frx_graph.freezing.constant_folding import bind_constants, freeze_weights
from frx_graph.passes.rewrites.folded_norms import fold_norms
from frx_graph.passes.rewrites.meta_strides.preserve_output_strides import convert_inputs_back
from frx_graph.passes.rewrites.meta_strides.unreliable_strides import calls_unreliable_operator
from frx_graph.plan import Plan
from frx_graph.support.torch_internals import (
    BoxedCodeGen,
    LazyGraphModule,
    aot_autograd,
    default_partition,
    inductor_config,
    mark_boxed,
)

IsConstant = Callable[[Tensor], bool]


@dataclass(frozen=True, eq=False)
class EagerPlan:
    """Compiles Dynamo graphs for eager execution: AOTAutograd's forward and backward, rewritten, run as they are.

    Weights of inference graphs that are `constant` become part of the graph. The caller must watch them.
    """

    plan: Plan
    on_rewrite: OnRewrite
    on_failure: OnFailure
    constant: IsConstant = field(default=lambda _: False, kw_only=True)

    def __call__(self, dynamo: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """Return the compiled graph, which takes the arguments of the Dynamo graph."""
        rewrite_or_leave(dynamo, "eager", self.plan, self.on_rewrite, self.on_failure)
        ours = _AotGraphCompiler(self)
        compiler = aot_autograd(
            fw_compiler=ours.compile_forward,
            bw_compiler=ours.compile_backward,
            inference_compiler=ours.compile_inference,
            partition_fn=partition_like_eager,
            keep_inference_input_mutations=True,
        )
        whole = can_upsample_whole(dynamo) and not calls_unreliable_operator(dynamo)
        with KernelStrides(), keep_upsampling_whole() if whole else contextlib.nullcontext():
            compiled: Compiled = compiler(dynamo, list(example_inputs))
        return compiled


class _AotGraphCompiler:
    """Compiles the graphs of one Dynamo graph: a forward and, mostly later, its backward, or an inference graph."""

    def __init__(self, how: EagerPlan) -> None:
        self._how = how
        self._doubtful: tuple[str, ...] = ()
        """Outputs that the forward saves, whose strides may differ from those that the backward expects."""
        self._misread: tuple[str, ...] = ()
        """Outputs whose strides differ even without rewrites: the backward reads them as they are."""
        self._done: list[RewrittenGraph] = []
        self._fallback_state = FallbackState(self._report_fallback)

    def compile_inference(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        """Compile a graph that has no backward."""
        self._fallback_state.alone = True
        merge_forced_strides(module.graph)
        given = _find_restrided_inputs(module, inputs)
        if inductor_config.freezing:
            frozen = self._compile_guarded(module, given, lambda: self._freeze_and_rewrite(module, given))
            if frozen is not None:
                return frozen
        return self._compile(module, given, Phase.FORWARD, train=False)

    def compile_forward(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        """Compile the forward of a graph with a backward."""
        merge_forced_strides(module.graph)
        compiled = self._compile(module, _find_restrided_inputs(module, inputs), Phase.FORWARD, train=True)
        report_output_strides(module)
        return compiled

    def compile_backward(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        """Compile the backward; it must not fail, since the user's own call of `backward` may compile it."""
        merge_forced_strides(module.graph)
        return self._compile(module, _find_restrided_inputs(module, inputs, self._misread), Phase.BACKWARD, train=True)

    def _compile(self, module: fx.GraphModule, given: Mapping[str, Tensor], phase: Phase, *, train: bool) -> Compiled:
        """Compile the rewritten `module`, or else the traced one, for the strides of the actual inputs."""
        run = None
        if not self._fallback_state.taken:
            saves = train and phase is Phase.FORWARD
            run = self._compile_guarded(
                module, given, lambda: self._rewrite(module, given, phase, train=train), saves=saves
            )
        return self._compile_as_traced(module, given) if run is None else run

    def _compile_guarded(
        self,
        module: fx.GraphModule,
        given: Mapping[str, Tensor],
        change: Callable[[], RewrittenGraph],
        *,
        saves: bool = False,
    ) -> GuardedGraph | None:
        """Change `module`, compile it with a fallback to the graph as it is now, and report what was done.

        On a failure, report that, leave `module` as it was, and return None.
        """
        try:
            with rollback_on_error(module) as before:
                done = change()
                run = GuardedGraph(
                    _box_arguments(module),
                    module.graph,
                    lambda: self._compile_as_traced(fx.GraphModule(module, before), given),
                    self._fallback_state,
                    saves=saves,
                )
        except Exception as error:  # noqa: BLE001 - any failure of this package falls back to the graph as it was
            self._how.on_failure(error)
            return None
        if saves:
            self._doubtful, self._misread = done.doubtful, done.misread
        self._done.append(done)
        self._report(done)
        return run

    def _report(self, done: RewrittenGraph) -> None:
        self._how.on_rewrite(replace(done, plan=self._how.plan.bind_to_graph(done.signature, done.applied).hash))

    def _report_fallback(self, error: Exception) -> None:
        for done in self._done:
            if done.applied:
                self._report(done.mark_undone(f"it failed when it ran: {summarize_error(error)}"))
        if not is_out_of_memory(error):
            self._how.on_failure(error)

    def _compile_as_traced(self, module: fx.GraphModule, given: Mapping[str, Tensor]) -> Compiled:
        try:
            with rollback_on_error(module):
                convert_inputs_back(module.graph, given)
        except Exception as error:  # noqa: BLE001 - any failure of this package falls back to the graph as it was
            self._how.on_failure(error)
        return _box_arguments(module)

    def _freeze_and_rewrite(self, module: fx.GraphModule, given: Mapping[str, Tensor]) -> RewrittenGraph:
        frozen = freeze_weights(module, self._how.constant)
        folded = fold_norms(module.graph, frozen, get_graph_id())
        done = self._rewrite(module, given, Phase.FORWARD, train=False, constants=frozen.names)
        bind_constants(module, frozen)
        return done if folded is None else replace(done, applied=(folded, *done.applied))

    def _rewrite(
        self,
        module: fx.GraphModule,
        given: Mapping[str, Tensor],
        phase: Phase,
        *,
        train: bool,
        constants: frozenset[str] = frozenset(),
    ) -> RewrittenGraph:
        return rewrite_graph(
            module,
            phase=phase,
            train=train,
            inner="eager",
            plan=self._how.plan,
            original_inputs=given,
            frozen=constants,
            uncertain_inputs=self._doubtful if phase is Phase.BACKWARD else (),
        )


def _find_restrided_inputs(
    module: fx.GraphModule, inputs: Sequence[Any], misread: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return the traced values of inputs whose actual strides differ; the graph's values become the actual ones."""
    given = {}
    for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        traced = node.meta.get("val")
        if node.name in misread:
            continue
        if isinstance(value, Tensor) and isinstance(traced, Tensor) and value.stride() != traced.stride():
            given[node.name] = traced
            node.meta["val"] = value
    return given


def partition_like_eager(
    joint: fx.GraphModule, inputs: Sequence[Any], **how: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Save what autograd would save: recomputing pays only if loops are fused."""
    for node in list(joint.graph.nodes):
        # Torch's partitioner takes an operator without readers for a tensor, even if it returns a tuple and must run to
        # draw random numbers: seen with `native_dropout`, torch 2.15.
        if node.op == "call_function" and not node.users and isinstance(node.meta.get("val"), (tuple, list)):
            with joint.graph.inserting_before(node.next):
                first = joint.graph.call_function(operator.getitem, (node, 0))
            first.meta["val"] = node.meta["val"][0]
    divided: tuple[fx.GraphModule, fx.GraphModule] = default_partition(joint, inputs, **how)
    return divided


def _box_arguments(module: fx.GraphModule) -> Compiled:
    """Return `module` as a function that takes its arguments in one list and empties it, as AOTAutograd prefers."""
    module.graph.set_codegen(BoxedCodeGen())
    module.recompile()
    # Compile the code now, since errors of the first run are not caught.
    LazyGraphModule.force_recompile(module)
    forward = module.forward

    def run(arguments: list[Any]) -> Any:
        return forward(arguments)

    return mark_boxed(run)
