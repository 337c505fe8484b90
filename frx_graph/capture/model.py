"""Capture a model by compiling it with a backend that only records, and running it once."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from frx_graph.capture.absent_gpu import are_on_absent_gpu
from frx_graph.capture.aten_trace import Tangent, UntracedGraph, find_backward_roots, list_results
from frx_graph.capture.captured_graph import Capture
from frx_graph.capture.dynamo_events import list_breaks_since, record_position, shorten_reason
from frx_graph.capture.model_call import ISOLATED
from frx_graph.capture.recorder import GraphRecorder
from frx_graph.capture.state_snapshot import preserve_state
from frx_graph.errors import NOT_THE_MODELS, CaptureError, TargetError, summarize_error
from frx_graph.support.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    TorchDynamoException,
    dynamo_config,
    dynamo_torch,
    is_make_fx_tracing,
    pytree,
)


def capture_model(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    origin: str = "model",
    as_eager: bool = True,
) -> Capture:
    """Return all graphs of one call of `model(*args, **kwargs)`, with the backward if `train`.

    The model runs once, eagerly, on its real inputs; `preserve_state` restores its state afterwards. With `as_eager`,
    torch's own layers are captured as they run in eager (see `use_eager_paths`): a compiled program has a graph break
    at each recurrent layer and decomposes `nn.MultiheadAttention`. Raises `TargetError` if the model itself raises,
    `CaptureError` if it runs but nothing of it could be captured.
    """
    kwargs = dict(kwargs or {})
    runs: list[_CountedGraph] = []
    with _ONE_AT_A_TIME, preserve_state(model, args, kwargs):
        recorder = GraphRecorder(origin, map_parameter_paths(model))

        def record_graph(dynamo: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            run = _CountedGraph(dynamo, recorder.note(dynamo, example_inputs), keep=train)
            runs.append(run)
            return run

        gradients: dict[str, Counter[_Tangents]] = {}
        mark = record_position()
        with configure_capture(train, as_eager):
            try:
                outputs = _compile_model(model, record_graph)(*args, **kwargs)
                gradients = _measure_boundary_gradients(runs, outputs) if train else {}
            except NOT_THE_MODELS:
                raise
            except NEEDS_VALUES:
                recorder.fail("program", "what follows needs values, which tensors without memory do not have")
            except BaseException as error:  # noqa: BLE001 - Dynamo or the model: distinguished below, reported either way
                _raise_if_model_fails(model, args, kwargs)
                # Dynamo's own errors explain themselves at length; of others the first line will do.
                explained = isinstance(error, TorchDynamoException)
                recorder.fail("program", shorten_reason(str(error)) if explained else summarize_error(error))
            recorder.note_breaks(list_breaks_since(mark))
            for run in runs:
                # Dynamo's cache keeps the compiled graphs: what they hold would stay alive with it.
                run.outputs.clear()
                if run.calls:
                    _trace(recorder, run, gradients.get(run.graph.graph_id))
    capture = recorder.capture()
    if not capture.graphs:
        raise _build_empty_error(capture, origin)
    return capture


NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""Errors of code that needs the values of fake tensors."""
_Tangents: TypeAlias = tuple[Tangent | None, ...]

_ONE_AT_A_TIME = threading.RLock()
"""Dynamo's configuration and caches are shared by the process."""


def _compile_model(model: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with a recording backend, in a separate cache if possible: the user's compilation limit stays unused."""
    # A callable object is compiled through its `__call__`; Dynamo wants a function or a module.
    target = model if isinstance(model, nn.Module) else _wrap_as_function(model)
    compiled: Callable[..., Any] = torch.compile(target, backend=backend, **ISOLATED)
    return compiled


def _build_empty_error(capture: Capture, origin: str) -> CaptureError:
    reasons = [f"{failure.subject}: {failure.reason}" for failure in capture.failures]
    reasons.extend(f"graph break: {shorten_reason(found.reason)}" for found in capture.breaks)
    return CaptureError(
        f"nothing of {origin} could be captured: {'; '.join(reasons) or 'Dynamo found no tensor operation to capture'}",
        "Dynamo skips recurrent layers, scripted and quantized modules, sparse tensors and functions under "
        "torch._dynamo.disable; torch._dynamo.explain(model)(*args) shows what it sees",
    )


class _CountedGraph:
    """A compiled graph that counts its calls; with `keep` it keeps the outputs of each."""

    def __init__(self, dynamo: fx.GraphModule, graph: UntracedGraph, *, keep: bool) -> None:
        self.graph = graph
        self.calls = 0
        self.outputs: list[tuple[Any, ...]] = []
        self._dynamo = dynamo
        self._keep = keep

    def __call__(self, *args: Any) -> Any:
        result = self._dynamo.forward(*args)
        if self._keep:
            self.outputs.append(tuple(pytree.tree_leaves(result)))
        self.calls += 1
        return result


def _trace(recorder: GraphRecorder, run: _CountedGraph, gradients: Counter[_Tangents] | None) -> None:
    """Trace a graph once for each set of gradients that its calls receive; later ones get a numbered graph id."""
    if not gradients:
        recorder.trace(run.graph, calls=run.calls)
        return
    for index, (tangents, calls) in enumerate(gradients.items()):
        graph = replace(run.graph, graph_id=f"{run.graph.graph_id}.{index}") if index else run.graph
        recorder.trace(graph, tangents, calls=calls)


def _measure_boundary_gradients(runs: Sequence[_CountedGraph], outputs: Any) -> dict[str, Counter[_Tangents]]:
    """Return the gradients that each output of each graph receives in one real backward, and the number of such calls.

    Only that shows the strides of gradients that cross from one graph to another, and the outputs that get none. A
    program that calls one graph once needs no run: its outputs are the roots.
    """
    if sum(run.calls for run in runs) < 2:
        return {}
    roots = find_backward_roots(list_results(outputs))
    returned = [t for run in runs for call in run.outputs for t in call]
    crossing = [t for t in returned if isinstance(t, Tensor) and t.grad_fn is not None]
    if not roots or not crossing:
        return {}
    if are_on_absent_gpu(roots):
        # Each graph is then taken to get gradients in the strides of what it returns.
        return {}
    received = torch.autograd.grad(roots, crossing, [torch.ones_like(r) for r in roots], allow_unused=True)
    pairs = (
        (id(tensor), gradient) for tensor, gradient in zip(crossing, received, strict=True) if gradient is not None
    )
    tangents = {key: Tangent(tuple(gradient.shape), gradient.stride()) for key, gradient in pairs}
    return {
        run.graph.graph_id: Counter(tuple(tangents.get(id(t)) for t in call) for call in run.outputs) for run in runs
    }


def map_parameter_paths(model: object) -> dict[int, str]:
    """Return `id(tensor)` → dotted path for parameters and buffers; a tied parameter has its first name."""
    if not isinstance(model, nn.Module):
        return {}
    paths: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        paths.setdefault(id(tensor), name)
    return paths


def _wrap_as_function(model: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(model, "__code__"):
        return model

    @functools.wraps(model, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    return call


def _raise_if_model_fails(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `TargetError` if the model fails uncompiled, too."""
    try:
        model(*args, **kwargs)
    except NOT_THE_MODELS:
        raise
    except BaseException as own:
        hint = "run model(*args, **kwargs) by itself until it works"
        raise TargetError(f"the model raised {summarize_error(own)}", hint) from own


@contextlib.contextmanager
def configure_capture(train: bool, as_eager: bool) -> Iterator[None]:
    """Set the gradient mode, keep sizes static, and suppress Dynamo's log lines: failures are reported."""
    silenced = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            torch.inference_mode(mode=False) if train else contextlib.nullcontext(),
            torch.set_grad_enabled(train),
            # This call's own sizes are the facts, also of code that the process has compiled for other sizes before.
            dynamo_config.patch(recompile_limit=64, accumulated_recompile_limit=4096, automatic_dynamic_shapes=False),
            use_eager_paths() if as_eager else contextlib.nullcontext(),
        ):
            yield
    finally:
        logging.disable(silenced)


@contextlib.contextmanager
def use_eager_paths() -> Iterator[None]:
    """Make Dynamo trace torch's layers as they run in eager.

    Dynamo breaks its graph at `nn.LSTM`, `nn.GRU` and `nn.RNN` unless `allow_rnn` is set. `nn.MultiheadAttention` runs
    as one native operator in inference unless it is being traced, which Dynamo answers from a table
    (`tracing_state_functions` in torch 2.11, 2.13 and 2.15). Without it the layer is traced as compiled.
    """
    with dynamo_config.patch(allow_rnn=True):
        table = getattr(dynamo_torch, "tracing_state_functions", None)
        answers = table() if table is not None else {}
        if is_make_fx_tracing not in answers:
            yield
            return
        answer = answers[is_make_fx_tracing]
        answers[is_make_fx_tracing] = False
        try:
            yield
        finally:
            answers[is_make_fx_tracing] = answer
