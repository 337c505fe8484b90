"""Whether a call can be advised on at all, before anything is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from frx_graph.errors import TargetError
from frx_graph.support.torch_internals import pytree


def check_call(model: object, args: object, kwargs: object, function: str = "advise") -> None:
    """Raise `TargetError` unless `model(*args, **kwargs)` has the form of a call, on tensors that hold values.
    `function` is what was called with them, for the hint."""
    if not callable(model):
        raise TargetError(f"the model is a {type(model).__name__}, which cannot be called", "give a module or function")
    if isinstance(args, Tensor) or not isinstance(args, Sequence) or isinstance(args, (str, bytes)):
        raise TargetError(
            f"args is a {type(args).__name__}, not a tuple or list of the call's arguments",
            f"for one argument write {function}(model, (x,))",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TargetError(f"kwargs is a {type(kwargs).__name__}, not a mapping", 'write kwargs={"name": value}')
    name = next(_on_meta(model, args, kwargs or {}), None)
    if name is not None:
        raise TargetError(
            f"{name} is on the meta device, where nothing is computed and nothing copied",
            "build the model and its inputs on the device that it will run on",
        )


def _on_meta(model: object, args: Sequence[object], kwargs: Mapping[object, object]) -> Iterator[str]:
    if isinstance(model, nn.Module):
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.is_meta:
                yield f"model.{name}"
    for name, given in (("args", tuple(args)), ("kwargs", dict(kwargs))):
        for path, value in pytree.tree_flatten_with_path(given)[0]:
            if isinstance(value, Tensor) and value.is_meta:
                yield f"{name}{pytree.keystr(path)}"
