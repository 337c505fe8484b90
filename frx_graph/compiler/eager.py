"""A Dynamo graph compiled for eager execution: AOTAutograd's graphs, rewritten, and run as they stand."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from torch._inductor import config as inductor_config
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.graph import _BoxedCodeGen

from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.whole_upsampling import may_upsample_whole, whole_upsampling
from frx_graph.compiler.aot_context import graph_id, report_output_strides, static_inputs, visible_outputs
from frx_graph.compiler.fallback import FallbackState, GuardedGraph
from frx_graph.compiler.graph_rollback import as_it_was_on_failure
from frx_graph.compiler.pre_autograd import Compiled, OnFailure, OnRewrite, rewrite_or_leave
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph, rewrite_graph
from frx_graph.errors import first_line
from frx_graph.freezing.constant_folding import bind, freeze_weights
from frx_graph.passes.rewrites.folded_norms import fold_norms
from frx_graph.passes.rewrites.meta_strides.pinned_views import pin_views
from frx_graph.passes.rewrites.meta_strides.restored_outputs import read_as_traced
from frx_graph.passes.rewrites.meta_strides.unreliable_strides import calls_doubtful
from frx_graph.plan import Plan
from frx_graph.support.out_of_memory import out_of_memory

IsConstant = Callable[[Tensor], bool]


class EagerPlan:
    """Compiles Dynamo graphs for eager execution: AOTAutograd's forward and backward, rewritten, run as they are.
    Weights of inference graphs that are `constant` become part of the graph; who calls it has to watch them."""

    def __init__(
        self, plan: Plan, on_rewrite: OnRewrite, on_failure: OnFailure, *, constant: IsConstant = lambda _: False
    ) -> None:
        self._plan = plan
        self._on_rewrite = on_rewrite
        self._on_failure = on_failure
        self._constant = constant

    def __call__(self, dynamo: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """The compiled graph, which takes what the Dynamo graph takes."""
        rewrite_or_leave(dynamo, "eager", self._plan, self._on_rewrite, self._on_failure)
        ours = _GraphCompiler(self._plan, self._on_rewrite, self._on_failure, self._constant)
        compiler = aot_autograd(
            fw_compiler=ours.forward,
            bw_compiler=ours.backward,
            inference_compiler=ours.inference,
            partition_fn=eager_partition,
            keep_inference_input_mutations=True,
        )
        whole = may_upsample_whole(dynamo) and not calls_doubtful(dynamo)
        with whole_upsampling() if whole else contextlib.nullcontext():
            compiled: Compiled = compiler(dynamo, list(example_inputs))
        return compiled


class _GraphCompiler:
    """Compiles what AOTAutograd makes of one Dynamo graph: a forward and, mostly later, its backward, or an inference
    graph."""

    def __init__(self, plan: Plan, on_rewrite: OnRewrite, on_failure: OnFailure, constant: IsConstant) -> None:
        self._plan = plan
        self._on_rewrite = on_rewrite
        self._on_failure = on_failure
        self._constant = constant
        self._doubtful: tuple[str, ...] = ()
        """What the forward saves, and may lie otherwise than the backward is told."""
        self._misread: tuple[str, ...] = ()
        """What lies otherwise, as it would without us: the backward reads it as it comes."""
        self._done: list[RewrittenGraph] = []
        self._fallback_state = FallbackState(self._gone_back)

    def inference(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        """The program of a graph that has no backward."""
        self._fallback_state.alone = True
        given = _given(module, inputs)
        if inductor_config.freezing:
            frozen = self._run(module, given, lambda: self._frozen(module, given))
            if frozen is not None:
                return frozen
        return self._compiled(module, given, Phase.FORWARD, train=False)

    def forward(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        """The program of a graph whose results a backward is made of."""
        compiled = self._compiled(module, _given(module, inputs), Phase.FORWARD, train=True)
        report_output_strides(module)
        return compiled

    def backward(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        """Its backward's. That may be asked for in the user's call of `backward`, where nobody else catches what fails
        here."""
        return self._compiled(module, _given(module, inputs, self._misread), Phase.BACKWARD, train=True)

    def _compiled(self, module: fx.GraphModule, given: Mapping[str, Tensor], phase: Phase, *, train: bool) -> Compiled:
        """`module` rewritten, or as it was traced; it runs on the inputs that it gets."""
        run = None
        if not self._fallback_state.taken:
            saves = train and phase is Phase.FORWARD
            run = self._run(module, given, lambda: self._rewritten(module, given, phase, train=train), saves=saves)
        return self._as_traced(module, given) if run is None else run

    def _run(
        self,
        module: fx.GraphModule,
        given: Mapping[str, Tensor],
        change: Callable[[], RewrittenGraph],
        *,
        saves: bool = False,
    ) -> GuardedGraph | None:
        """`module` changed and compiled, with a way back to what it is now; what was done is told. A failure is told,
        leaves `module` as it was, and gives None."""
        try:
            with as_it_was_on_failure(module) as before:
                done = change()
                run = GuardedGraph(
                    _boxed(module),
                    module.graph,
                    lambda: self._as_traced(fx.GraphModule(module, before), given),
                    self._fallback_state,
                    saves=saves,
                )
        except Exception as error:  # noqa: BLE001 - any failure of ours falls back to the graph as it was
            self._on_failure(error)
            return None
        if saves:
            self._doubtful, self._misread = done.doubtful, done.misread
        self._done.append(done)
        self._tell(done)
        return run

    def _tell(self, done: RewrittenGraph) -> None:
        self._on_rewrite(replace(done, plan=self._plan.of_graph(done.signature, done.applied).hash))

    def _gone_back(self, error: Exception) -> None:
        for done in self._done:
            if done.applied:
                self._tell(done.taken_back(f"it failed when it ran: {first_line(error)}"))
        if not out_of_memory(error):
            self._on_failure(error)

    def _as_traced(self, module: fx.GraphModule, given: Mapping[str, Tensor]) -> Compiled:
        self._or_as_it_was(module, lambda: read_as_traced(module.graph, given))
        self._or_as_it_was(module, lambda: pin_views(module.graph))
        return _boxed(module)

    def _or_as_it_was(self, module: fx.GraphModule, change: Callable[[], object]) -> None:
        """Change `module`. A failure is told, and leaves it as it was."""
        try:
            with as_it_was_on_failure(module):
                change()
        except Exception as error:  # noqa: BLE001 - any failure of ours falls back to the graph as it was
            self._on_failure(error)

    def _frozen(self, module: fx.GraphModule, given: Mapping[str, Tensor]) -> RewrittenGraph:
        frozen = freeze_weights(module, self._constant)
        folded = fold_norms(module.graph, frozen, graph_id())
        done = self._rewritten(module, given, Phase.FORWARD, train=False, constants=frozen.names)
        bind(module, frozen)
        return done if folded is None else replace(done, applied=(folded, *done.applied))

    def _rewritten(
        self,
        module: fx.GraphModule,
        given: Mapping[str, Tensor],
        phase: Phase,
        *,
        train: bool,
        constants: frozenset[str] = frozenset(),
    ) -> RewrittenGraph:
        placeholders = [node.name for node in module.graph.find_nodes(op="placeholder")]
        return rewrite_graph(
            module,
            graph_id=graph_id(),
            phase=phase,
            train=train,
            inner="eager",
            plan=self._plan,
            static_inputs=static_inputs(placeholders, phase is Phase.BACKWARD) | constants,
            visible=visible_outputs(module, phase is Phase.BACKWARD),
            given=given,
            frozen=constants,
            doubtful=self._doubtful if phase is Phase.BACKWARD else (),
        )


def _given(module: fx.GraphModule, inputs: Sequence[Any], misread: Collection[str] = ()) -> dict[str, Tensor]:
    """The inputs whose strides are others than those that the graph was traced with, but for those that are `misread`,
    as they were traced; the graph's values become those that are given."""
    given = {}
    for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        traced = node.meta.get("val")
        if node.name in misread:
            continue
        if isinstance(value, Tensor) and isinstance(traced, Tensor) and value.stride() != traced.stride():
            given[node.name] = traced
            node.meta["val"] = value
    return given


def eager_partition(joint: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
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
    # Now, where what fails is caught, and not in the first run.
    _LazyGraphModule.force_recompile(module)
    forward = module.forward

    def run(arguments: list[Any]) -> Any:
        return forward(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]  # how AOTAutograd tells
    return run
