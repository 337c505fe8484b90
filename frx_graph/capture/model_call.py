"""Check calls of a model before anything runs, and compile them as one function with a separate cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from frx_graph.errors import TargetError
from frx_graph.support.torch_internals import get_compile_stance, pytree


def check_call(model: object, args: object, kwargs: object, function: str = "advise") -> None:
    """Raise `TargetError` unless it is a call on tensors with values. `function` is the name that the hint shows."""
    if not callable(model):
        raise TargetError(f"the model is a {type(model).__name__}, which cannot be called", "give a module or function")
    if isinstance(args, Tensor) or not isinstance(args, Sequence) or isinstance(args, (str, bytes)):
        raise TargetError(
            f"args is a {type(args).__name__}, not a tuple or list of the call's arguments",
            f"for one argument write {function}(model, (x,))",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TargetError(f"kwargs is a {type(kwargs).__name__}, not a mapping", 'write kwargs={"name": value}')
    name = next(_find_meta_tensors(model, args, kwargs or {}), None)
    if name is not None:
        raise TargetError(
            f"{name} is on the meta device, where nothing is computed and nothing copied",
            "build the model and its inputs on the device that it will run on",
        )


def _find_meta_tensors(model: object, args: Sequence[object], kwargs: Mapping[object, object]) -> Iterator[str]:
    if isinstance(model, nn.Module):
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.is_meta:
                yield f"model.{name}"
    for name, given in (("args", tuple(args)), ("kwargs", dict(kwargs))):
        for path, value in pytree.tree_flatten_with_path(given)[0]:
            if isinstance(value, Tensor) and value.is_meta:
                yield f"{name}{pytree.keystr(path)}"


class NotCompiledError(Exception):
    """A call that Dynamo does not compile, as under the stance `force_eager` or a dispatch mode."""


def wrap_whole_call(model: Callable[..., Any], purpose: str) -> Callable[..., Any]:
    """Return the model with its hooks as one function, for `fullgraph=True`. Called without being compiled, it raises
    `NotCompiledError` before the model runs. `purpose` becomes part of the function's name."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            raise NotCompiledError
        return model(*args, **kwargs)

    # With a separate code object: Dynamo counts compilations by code.
    call.__code__ = call.__code__.replace(co_name=f"{purpose}_{type(model).__name__}")
    return call


def is_recompile_forbidden() -> bool:
    """Return True under the stance `fail_on_recompile`, with which a program forbids recompilation."""
    return get_compile_stance() == "fail_on_recompile"


_NAME = "isolate_recompiles"

ISOLATED: Mapping[str, Any] = MappingProxyType(
    {_NAME: True} if _NAME in inspect.signature(torch.compile).parameters else {}
)
