"""A model's call as one function of its own, which runs compiled or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from frx_graph.support.torch_internals import get_compile_stance


class NotCompiledError(Exception):
    """Dynamo does not compile a call, as under a stance of `force_eager`, or where something watches operators."""


def whole_call(model: Callable[..., Any], purpose: str) -> Callable[..., Any]:
    """The model with its hooks as one function, to be compiled with `fullgraph=True`. Where it is called without being
    compiled it raises `NotCompiledError`, and nothing of the model has run. `purpose` goes into its name."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            raise NotCompiledError
        return model(*args, **kwargs)

    # With code of its own: Dynamo counts by code how often it compiles.
    call.__code__ = call.__code__.replace(co_name=f"{purpose}_{type(model).__name__}")
    return call


def recompiling_fails() -> bool:
    """Under the stance `fail_on_recompile`, by which a program asks whether it is compiled again."""
    # Private: nothing public tells which stance is taken.
    return get_compile_stance() == "fail_on_recompile"
