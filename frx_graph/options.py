"""The options of `torch.compile(model, backend="frx", options={...})`, checked on entry."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from frx_graph.errors import OptionError, suggest_name, summarize_error
from frx_graph.rules.gpu_profile import require_gpu
from frx_graph.support.torch_internals import InductorBackend, inductor_config, list_backends, list_mode_options
from frx_graph.trials.policy import TrialPolicy, parse_policy, read_policy


class BackendOptions(BaseModel):
    """The options of the backend. Torch passes the dictionary on unchecked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["apply", "advise", "autopilot"] = Field(
        "apply",
        description="`apply`: use the plan that trials promoted for a graph in this environment, else compile as the "
        "inner backend would. `advise`: compile as the inner backend would, and print ranked fixes at exit. "
        "`autopilot`: like `apply`, but first try graphs without a decision",
    )
    policy: TrialPolicy | None = Field(
        None,
        description="of trials, with mode autopilot: a mapping, or the path of a YAML file; otherwise the project's",
    )
    plan: Literal["solved", "all"] | None = Field(
        None,
        description="apply rewrites that no trial has proved: those that measured costs favour (solved), or every "
        "one whose check passes (all)",
    )
    freeze: bool = Field(
        False,
        description="frx_graph.compile only: without gradients, in eval() mode, run with weights packed as constants, "
        "by Inductor, or with inner eager and a plan by frx",
    )
    pin_strides: StrictBool | tuple[str, ...] = Field(
        False,
        description="frx_graph.compile only: copy tensor arguments, or those with these names, to the strides of the "
        "first call, so that other strides compile nothing again; the program sees the pinned strides",
    )
    pool_allocations: StrictBool = Field(
        False,
        description="make the process keep the host memory that it frees, so that calls do not fault it in again; it "
        "then stays as large as it ever was; nothing happens with another allocator than glibc's default",
    )
    gpu: str | None = Field(
        None,
        alias="for",
        description="with mode advise: advise for this GPU, which need not be here; the program runs where it is",
    )
    inner: str = Field("inductor", description="the backend that compiles the program")
    inner_mode: str | None = Field(None, description="torch.compile's `mode` for an inductor inner backend")
    inner_options: Mapping[str, Any] = Field(
        default_factory=dict, description="torch.compile's `options` for an inductor inner backend"
    )


PLANNED = frozenset({"inductor", "eager", "aot_eager"})
"""The inner backends whose graphs a plan can rewrite."""


def check_inner(name: str) -> None:
    """Raise `OptionError`, with the nearest name, for an inner backend that torch does not have, or "frx"."""
    known = [backend for backend in list_backends(None) if backend != "frx"]
    if name not in known:
        listed = [backend for backend in known if not backend.endswith("TESTING_ONLY")]
        raise OptionError(f"{name!r} cannot be the inner backend", suggest_name(name, listed, "known"))


def check_together(options: BackendOptions) -> None:
    """Raise `OptionError` for a wrong inner backend, option of Inductor or GPU, and for contradictory options."""
    check_inner(options.inner)
    if options.policy is not None and options.mode != "autopilot":
        raise OptionError("a policy is for mode 'autopilot'", 'add "mode": "autopilot", or leave it out')
    if options.gpu is not None:
        require_gpu(options.gpu)
        if options.mode != "advise":
            raise OptionError("option 'for' names the GPU of advice", 'add "mode": "advise", or leave it out')
    if options.plan is not None and options.mode == "autopilot":
        raise OptionError("the autopilot finds a plan by itself", "leave out plan, or mode")
    if options.inner != "inductor" and (options.inner_mode or options.inner_options):
        raise OptionError(
            f"inner backend {options.inner!r} takes neither inner_mode nor inner_options", "they are Inductor's"
        )
    if options.plan is not None and options.inner not in PLANNED:
        raise OptionError(
            f"no plan can be given to inner backend {options.inner!r}", "inductor, eager and aot_eager take one"
        )
    if options.mode == "autopilot" and options.freeze:
        raise OptionError("the autopilot does not try frozen weights", "leave out freeze, or mode and policy")
    if options.mode == "autopilot" and options.inner not in PLANNED:
        raise OptionError(
            f"the autopilot cannot try anything under inner backend {options.inner!r}",
            "inductor, eager and aot_eager take a plan",
        )
    if options.mode == "autopilot" and options.inner_options:
        raise OptionError(
            "the autopilot cannot try anything with inner_options: trials compile without them",
            "leave them out, or set them in torch._inductor.config",
        )
    if options.inner == "inductor":
        _check_inductor(options.inner_mode, options.inner_options)


def _check_inductor(mode: str | None, options: Mapping[str, Any]) -> None:
    """Check them now: torch checks them only at the first call."""
    modes = list_mode_options()
    if mode and mode not in modes:
        raise OptionError(f"unknown mode {mode!r} for Inductor", suggest_name(mode, modes, "known"))
    for name, value in options.items():
        try:
            InductorBackend(None, {name: value}, None)
        except RuntimeError as error:
            known = inductor_config.get_config_copy()
            plain = name.replace("-", "_")
            if plain in known:
                raise OptionError(f"inner option {name!r} for Inductor: {summarize_error(error)}") from error
            near = difflib.get_close_matches(plain, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "torch._inductor.list_options() lists them"
            raise OptionError(f"unknown inner option {name!r} for Inductor", hint) from error


def parse_backend_options(options: Mapping[str, Any] | None, mode: str | None) -> BackendOptions:
    """Return the options, each checked by itself, with `torch.compile(mode=...)` for the inner backend. Raises
    `OptionError` for options that are not a mapping, and for an unknown key."""
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options is a {type(options).__name__}, not a mapping", 'write options={"plan": "solved"}')
    given = dict(options or {})
    match given.get("policy"):
        case str() | Path() as file:
            given["policy"] = read_policy(Path(file))
        case Mapping() as policy:
            given["policy"] = parse_policy(policy, "option 'policy'")
    if mode is not None:
        given["inner_mode"] = mode
    known = [field.alias or name for name, field in BackendOptions.model_fields.items()]
    for key in given:
        if key not in known:
            hint = suggest_name(str(key), known, "known options")
            raise OptionError(f"unknown option {key!r} for backend 'frx'", hint)
    try:
        return BackendOptions(**given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"option {where!r} for backend 'frx': {first['msg']}"
        raise OptionError(message, f"given: {first['input']!r}") from error
