"""Captures a program as one graph of Dynamo's, and runs nothing of it.

Dynamo traces Python without running it: what the program would do besides computing (count its calls, fill lists, step
an optimizer) it does in the code that it writes, around the call of the graph. That code is kept here and does not run.
What Dynamo cannot trace breaks the graph, and such a program is not captured.
"""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.convert_frame import compile_lock, register_bytecode_hook
from torch._dynamo.exc import TorchDynamoException
from torch._functorch.autograd_function import autograd_function_apply

from frx_graph.capture.dynamo_reason import short_reason
from frx_graph.capture.kept_modes import modes_put_back
from frx_graph.capture.model import capturing
from frx_graph.capture.recorder import GraphRecorder, UntracedGraph
from frx_graph.capture.repeatable_graph import torchs_own
from frx_graph.capture.saved_tensor_hooks import unseen_by_saved_tensor_hooks
from frx_graph.capture.whole_call import NotCompiledError, recompiling_fails, whole_call
from frx_graph.errors import CaptureError

_COUNTED = re.compile(r"_\d")
"""What begins the number in `__compiled_fn_1_<uuid>` and `___dict_<id>_c0`."""

_UNTRACED = re.compile("flat_apply|invoke_leaf_function")
"""What calls functions under `nonstrict_trace` and its like."""


@dataclass(frozen=True)
class WholeProgram:
    """A call of a program. `inputs` are what the graph is given: the program's own tensors. `code` stands for all that
    it does around the graph, constants that it returns and attributes that it sets among them: equal for calls that do
    the same."""

    dynamo: fx.GraphModule
    inputs: tuple[Any, ...]
    code: object
    noted: UntracedGraph


def whole_program(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    gradients: bool,
    as_eager: bool,
    recorder: GraphRecorder | None = None,
) -> WholeProgram:
    """`model(*args, **kwargs)` as Dynamo captures it, with or without gradients; `as_eager` as in `capture_model`.

    Raises `CaptureError` where that is not one graph of torch's operators, and whatever the model raises while it is
    traced.
    """
    recorder = GraphRecorder("model") if recorder is None else recorder
    found: list[tuple[fx.GraphModule, tuple[Any, ...], UntracedGraph]] = []
    written: list[types.CodeType] = []
    call = whole_call(model, "captured")

    def backend(dynamo: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append((dynamo, tuple(example_inputs), recorder.note(dynamo, example_inputs)))
        return dynamo.forward

    def keep_code(code: types.CodeType, new_code: types.CodeType) -> types.CodeType | None:
        if code is not call.__code__:
            return None
        written.append(new_code)
        # What runs in its place is the call as it is, which raises.
        return code

    # Tracing graphs and Dynamo itself put functions of the process in the place of others.
    with compile_lock:
        hook = register_bytecode_hook(keep_code)
        try:
            with (
                capturing(gradients, as_eager),
                _may_compile(),
                torch._dynamo.config.patch(suppress_errors=False),
                modes_put_back(),
                unseen_by_saved_tensor_hooks(),
            ):
                torch.compile(call, backend=backend, fullgraph=True)(*args, **kwargs)
        except NotCompiledError as error:
            if not written:
                raise CaptureError("the program is not compiled", "switch torch.compile on") from error
        except TorchDynamoException as error:
            raise CaptureError(f"the program is not captured in one graph: {short_reason(str(error))}") from error
        finally:
            hook.remove()
            graphs, codes = found.copy(), written.copy()
            # Dynamo keeps backends for as long as the process lives: this one would keep the program's tensors.
            found.clear()
            written.clear()
    if len(graphs) != 1 or len(codes) != 1:
        raise CaptureError("the program is not captured in one graph")
    dynamo, inputs, noted = graphs[0]
    if (foreign := _foreign(dynamo)) is not None:
        raise CaptureError(f"the program calls {foreign}, into which nobody can see")
    return WholeProgram(dynamo, inputs, _what_it_does(codes[0]), noted)


@contextlib.contextmanager
def _may_compile() -> Iterator[None]:
    """Under the stance `fail_on_recompile` too, which is meant for the program's own compilations."""
    if not recompiling_fails():
        yield
        return
    with torch.compiler.set_stance("default"):
        yield


def _foreign(dynamo: fx.GraphModule) -> str | None:
    """A function or module of Python's that runs as it stands, as one under `torch._dynamo.allow_in_graph` does; or a
    `torch.autograd.Function`, whose backward Dynamo traces, but eager runs."""
    for graph in (module for module in dynamo.modules() if isinstance(module, fx.GraphModule)):
        for node in graph.graph.nodes:
            if node.target is autograd_function_apply:
                return "a torch.autograd.Function"
            if node.op == "call_function" and _UNTRACED.search(str(node.target)):
                return "a function that Dynamo does not trace"
            called = graph.get_submodule(str(node.target)) if node.op == "call_module" else node.target
            kind = called if isinstance(called, types.FunctionType) else type(called)
            runs = node.op in ("call_function", "call_module") and not isinstance(called, fx.GraphModule)
            if runs and not torchs_own(kind):
                return f"{kind.__module__}.{kind.__qualname__}"
    return None


def _what_it_does(code: types.CodeType) -> object:
    """The code, with the names of what Dynamo has made cut off where it counts or identifies."""
    constants = tuple(_what_it_does(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts)
    names = tuple(_COUNTED.split(name)[0] if name.startswith("__") else name for name in code.co_names)
    return (code.co_code, constants, names)
