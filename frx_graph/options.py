"""The options of `torch.compile(model, backend="frx", options={...})`, checked where they enter."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frx_graph.errors import OptionError


class BackendOptions(BaseModel):
    """What the backend understands; torch passes the dictionary on unchecked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["apply", "advise"] = Field(
        "apply",
        description="apply: compile as the inner backend would; advise: also print the ranked fixes at exit",
    )
    plan: Literal["solved", "all"] | None = Field(
        None,
        description="apply rewrites that no trial has proved: those that measured costs speak for (solved), or every "
        "one whose check passes (all)",
    )
    freeze: bool = Field(
        False,
        description="frx_graph.compile only: without gradients, run with weights packed as constants, by Inductor, or "
        "with inner eager and a plan by frx",
    )
    inner: str = Field("inductor", description="the backend that compiles the program")
    inner_mode: str | None = Field(None, description="torch.compile's `mode` for an inductor inner backend")
    inner_options: Mapping[str, Any] = Field(
        default_factory=dict, description="torch.compile's `options` for an inductor inner backend"
    )


PLANNED = frozenset({"inductor", "eager", "aot_eager"})
"""The inner backends whose graphs a plan can rewrite."""


def check_inner(name: str) -> None:
    """Raise `OptionError`, with the nearest name, for an inner backend that torch does not have or that is us."""
    known = [backend for backend in torch._dynamo.list_backends(None) if backend != "frx"]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise OptionError(f"{name!r} cannot be the inner backend", hint)


def check_together(options: BackendOptions) -> None:
    """Raise `OptionError` for an unknown inner backend, and for one that does not take what it is given."""
    check_inner(options.inner)
    if options.inner != "inductor" and (options.inner_mode or options.inner_options):
        raise OptionError(
            f"inner backend {options.inner!r} takes neither inner_mode nor inner_options", "they are Inductor's"
        )
    if options.plan is not None and options.inner not in PLANNED:
        raise OptionError(
            f"no plan can be given to inner backend {options.inner!r}", "inductor, eager and aot_eager take one"
        )


def backend_options(options: Mapping[str, Any] | None, mode: str | None) -> BackendOptions:
    """Checked options. `mode` is `torch.compile(mode=...)`, which belongs to the inner backend.

    Raises `OptionError` that names the nearest right key for an unknown one.
    """
    given = dict(options or {})
    if mode is not None:
        given["inner_mode"] = mode
    known = BackendOptions.model_fields
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(known)}"
            raise OptionError(f"unknown option {key!r} for backend 'frx'", hint)
    try:
        return BackendOptions(**given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"option {where!r} for backend 'frx': {first['msg']}"
        raise OptionError(message, f"given: {first['input']!r}") from error
