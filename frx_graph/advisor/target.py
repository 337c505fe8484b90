"""Load the target of a command: `module:callable` or `file.py:callable`."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from frx_graph.capture.call_site import CallSite
from frx_graph.errors import TargetError, summarize_error
from frx_graph.support.torch_internals import pytree

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
"""Dtypes by the names that `--dtype` takes."""
_DEFINITION = re.compile(r"^(?:async\s+def|def|class)\s+(\w+)", re.MULTILINE)
_DYNAMIC = re.compile(r"import\s*\*|__getattr__|globals\(|locals\(|vars\(|setattr\(|exec\(")
"""Ways to define names that the source does not spell."""

_RETURNS = (
    "the target must return (model, args), (model, args, kwargs), or (model, args, kwargs, optimizer), args being a "
    "tuple or list"
)


@dataclass(frozen=True)
class Workload:
    """A model, the arguments of one call, and the optimizer that ends a training step, if any."""

    name: str
    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    optimizer: torch.optim.Optimizer | None = None
    builder: CallSite | None = None
    """The function that has built the model; None if it is not written in Python."""


def load_target(
    target: str, sizes: Mapping[str, int] | None = None, *, within: AbstractContextManager[object] | None = None
) -> Workload:
    """Import the module or file, call the callable with `sizes` and in the context `within`, check what it returned.
    Raises `TargetError`."""
    location, name = _split_target(target)
    module = _import_file(location) if location.endswith(".py") else _import_module(location)
    factory = getattr(module, name, None)
    if factory is None:
        raise _explain_missing(location, name, [n for n in vars(module) if callable(getattr(module, n))])
    if not callable(factory):
        raise TargetError(f"{target} is a {type(factory).__name__}, not a callable", _RETURNS)
    sizes = sizes or {}
    _check_sizes(target, factory, sizes)
    try:
        with within or contextlib.nullcontext():
            made = factory(**sizes)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise TargetError(f"{target} raised {_format_error(error)}", "call it by itself until it works") from error
    return replace(_validate_workload(target, made), builder=_find_code(factory))


def _find_code(factory: Callable[..., Any]) -> CallSite | None:
    code = getattr(inspect.unwrap(factory), "__code__", None)
    return None if code is None else CallSite(code.co_filename, code.co_firstlineno, code.co_name)


def check_spelling(target: str) -> None:
    """Raise `TargetError` if the target has no name, its file does not exist, or its file never mentions that name.

    Nothing is imported, so this comes before everything that takes time. Modules are found when they are loaded.
    """
    location, name = _split_target(target)
    if not location.endswith(".py"):
        return
    try:
        source = _find_file(location).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    if not (re.search(rf"\b{re.escape(name)}\b", source) or _DYNAMIC.search(source)):
        raise _explain_missing(location, name, _DEFINITION.findall(source))


def _split_target(target: str) -> tuple[str, str]:
    location, _, name = target.rpartition(":")
    if not location or not name:
        raise TargetError(f"target {target!r} is not of the form module:callable", "e.g. frx advise model.py:build")
    return location, name


def _explain_missing(location: str, name: str, known: Sequence[str]) -> TargetError:
    near = difflib.get_close_matches(name, known, n=1)
    return TargetError(f"{location} has no {name!r}", f"did you mean {near[0]!r}?" if near else "check the name")


def place(workload: Workload, device: str | None, dtype: torch.dtype | None) -> Workload:
    """Return the workload on `device`, with floating-point tensors in `dtype`. Raises `TargetError`."""
    if device is None and dtype is None:
        return workload

    def move_value(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

    try:
        model = workload.model
        if isinstance(model, nn.Module):
            model = model.to(device=device, dtype=dtype)
        args, kwargs = pytree.tree_map(move_value, (workload.args, dict(workload.kwargs)))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise TargetError(
            f"{workload.name} cannot be moved to device={device} dtype={dtype}: {summarize_error(error)}",
            "frx doctor shows which devices this torch can use",
        ) from error
    return replace(workload, model=model, args=args, kwargs=kwargs)


def _check_sizes(target: str, factory: Callable[..., object], sizes: Mapping[str, int]) -> None:
    if not sizes:
        return
    try:
        signature = inspect.signature(factory)
    except ValueError:
        # Some callables that are not written in Python have no signature.
        return
    try:
        signature.bind(**sizes)
    except TypeError as error:
        said = f"{target} does not take {', '.join(sizes)}: {summarize_error(error)}"
        raise TargetError(said, f"it takes {', '.join(signature.parameters) or 'nothing'}") from error


def _validate_workload(target: str, made: object) -> Workload:
    if not isinstance(made, tuple) or not 2 <= len(made) <= 4:
        said = f"a tuple of {len(made)}" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise TargetError(f"{target} returned {said}", _RETURNS)
    model, args = made[0], made[1]
    kwargs = made[2] if len(made) > 2 else {}
    optimizer = made[3] if len(made) == 4 else None
    for part, role, fits in (
        (model, "the model, which cannot be called", callable(model)),
        (args, "args", isinstance(args, (tuple, list))),
        (kwargs, "kwargs", isinstance(kwargs, Mapping)),
        (optimizer, "the optimizer", optimizer is None or isinstance(optimizer, torch.optim.Optimizer)),
    ):
        if not fits:
            raise TargetError(f"{target} returned a {type(part).__name__} as {role}", _RETURNS)
    return Workload(target, model, tuple(args), kwargs, optimizer)


def _find_file(location: str) -> Path:
    path = Path(location)
    if not path.is_file():
        raise TargetError(f"no such file: {location}", "give the path from the current folder")
    return path


def _import_file(location: str) -> ModuleType:
    path = _find_file(location)
    name = path.stem if path.stem not in sys.modules else f"frx_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise TargetError(f"{location} cannot be imported", "is it a Python file?")
    module = importlib.util.module_from_spec(spec)
    # As `python file.py` does it: neighbours can be imported, and classes can be found by their module's name.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise TargetError(f"importing {location} raised {_format_error(error)}", "run it with python first") from error
    return module


def _import_module(location: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(location)
    except SystemExit as error:
        raise TargetError(
            f"importing {location} ended the program: {_format_error(error)}", "guard its main"
        ) from error
    except ModuleNotFoundError as error:
        if error.name is not None and (location == error.name or location.startswith(f"{error.name}.")):
            raise TargetError(
                f"no module named {location!r}", "for a file, give its path ending in .py, e.g. model.py:build"
            ) from error
        raise TargetError(f"importing {location} raised {_format_error(error)}", "install what it needs") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise TargetError(f"importing {location} raised {_format_error(error)}", "import it in python first") from error


def _format_error(error: BaseException) -> str:
    """Return `ValueError: text (file.py:12)`, with the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{summarize_error(error)}{at}"
