"""Find the line of user code that made a value: file, line, function and module path.

Two independent sources give the same `CallSite`: the stack that Dynamo records on a graph node (prediction) and the
live Python stack under a dispatch mode (observation). Both keep the innermost frame outside torch and frx-graph.
"""

from __future__ import annotations

import itertools
import re
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Annotated

from annotated_types import Ge

from frx_graph.support.json_fields import NullFor
from frx_graph.support.optional_torch import find_torch_folder

_TORCH_ROOT = f"{find_torch_folder() or '<no torch>'}/"
"""Found without an import: documents name call sites, and reading them needs no torch."""
_DYNAMO_ROOT = f"{_TORCH_ROOT}_dynamo/"
_OWN_ROOT = f"{Path(__file__).parent.parent}/"
_PYTHON_ROOT = f"{sysconfig.get_path('stdlib')}/"
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_\d+$")
_ROOT_LOCAL = re.compile(r"^L\['(?:[^'\\]|\\.)*'\]")
_GETATTR = re.compile(r"getattr\((?P<base>.+), '(?P<name>[^']+)'\)")
_WRAPPERS = re.compile(r"\.__dict__|\['_modules'\]|\._modules|\._orig_mod")
_UNKNOWN = "<unknown>"
_SUBSCRIPT = re.compile(r"\['?(?P<key>[^\]']+)'?\]")


@dataclass(frozen=True, slots=True)
class CallSite:
    """A place in the user's code."""

    file: Annotated[str, NullFor(_UNKNOWN)]
    """Path as the interpreter knows it."""
    line: Annotated[int, Ge(1), NullFor(0)]
    function: Annotated[str, NullFor(_UNKNOWN)]
    module_path: Annotated[str, NullFor("")] = ""
    """Dotted from the root module, `model.layer3.2.conv1`; `*` stands for the parts in which several differ."""

    @property
    def location(self) -> tuple[str, int]:
        """Key that compares predicted and observed copies."""
        return (self.file, self.line)

    @property
    def place(self) -> tuple[str, int, str, str]:
        """Key that groups calls into one finding: file, line and function; without a line, the module path, too."""
        return (self.file, self.line, self.function, "" if self.line else self.module_path)

    def __str__(self) -> str:
        """`file:line`, as editors and terminals link it."""
        return f"{self.file}:{self.line}" if self.line else self.file


MODEL_PATH = "model"
"""Path of the root module."""
UNKNOWN_SITE = CallSite(file=_UNKNOWN, line=0, function=_UNKNOWN)


def is_foreign(file: str) -> bool:
    """True for frames of torch, of Python's own library and of frx-graph itself: never the user's call site."""
    if file.startswith(_PYTHON_ROOT) and "/site-packages/" not in file and "/dist-packages/" not in file:
        return True
    return file.startswith((_TORCH_ROOT, _OWN_ROOT, "<frozen", "<eval_with_key>"))


def strip_resume_name(name: str) -> str:
    """Return the function's own name, also if Dynamo resumed it under another after a graph break."""
    resumed = _RESUMED.match(name)
    return resumed["function"] if resumed else name


def parse_stack_trace(stack_trace: str | None, module_path: str = "") -> CallSite:
    """Return the innermost user frame of an FX node's `stack_trace`, or the unknown site."""
    innermost: CallSite | None = None
    for match in _FRAME.finditer(stack_trace or ""):
        if not is_foreign(match["file"]):
            innermost = CallSite(match["file"], int(match["line"]), strip_resume_name(match["function"]), module_path)
    return innermost if innermost is not None else replace(UNKNOWN_SITE, module_path=module_path)


def find_user_frame(frame: FrameType | None, module_path: str = "") -> CallSite:
    """Return the innermost user frame at or above a live `frame`.

    Innermost frames of frx-graph are skipped, since they only observe. A frame of frx-graph further up called the
    program, as `advise` does, so the frames above it are not the program's and the site is unknown.
    """
    looking_on = True
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_foreign(file):
            return CallSite(file, frame.f_lineno, strip_resume_name(frame.f_code.co_name), module_path)
        looking_on = looking_on and file.startswith(_OWN_ROOT)
        if not looking_on and file.startswith(_OWN_ROOT):
            break
        frame = frame.f_back
    return replace(UNKNOWN_SITE, module_path=module_path)


def find_compiled_call(frame: FrameType | None) -> CallSite:
    """Return the line that called the frame which Dynamo is compiling; to be called from within a backend."""
    while frame is not None and not frame.f_code.co_filename.startswith(_DYNAMO_ROOT):
        frame = frame.f_back
    return find_user_frame(frame)


def resolve_module_site(site: CallSite, kind: str, caller: CallSite = UNKNOWN_SITE) -> CallSite:
    """Return `site`; if its line is unknown, `caller`; if that is, too, the `forward` of the module class `kind`.

    The line of an operator of a bare `nn.Conv2d` or `nn.Sequential` is in torch's own code.
    """
    if site.line:
        return site
    if caller.line:
        return replace(caller, module_path=site.module_path)
    return replace(site, function=f"{kind}.forward") if kind else site


def get_class_name(kind: object) -> str:
    """Return the short name of a class, or of the class that `kind` names with its module."""
    return kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2]


def parse_module_path(sources: Iterable[str], root: str = MODEL_PATH) -> str:
    """Return the path of the innermost module of an `nn_module_stack`: `model.layer3.2` for `L['self'].layer3[2]`."""
    *_, innermost = ("", *sources)
    if not innermost:
        return root
    while (wrapped := _GETATTR.search(innermost)) is not None:
        innermost = innermost.replace(wrapped.group(0), f"{wrapped['base']}.{wrapped['name']}")
    path = _SUBSCRIPT.sub(lambda m: f".{m['key']}", _ROOT_LOCAL.sub("", _WRAPPERS.sub("", innermost)))
    return f"{root}{path}" if path.startswith(".") or not path else f"{root}.{path}"


def merge_module_paths(paths: Iterable[str]) -> str:
    """Return one path for several instances: parts that differ become `*`; other depths keep the common beginning."""
    split = [path.split(".") for path in dict.fromkeys(paths) if path]
    if not split:
        return ""
    if len({len(parts) for parts in split}) == 1:
        return ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in zip(*split, strict=True))
    alike = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*split, strict=False))
    shared = [parts[0] for parts in alike]
    return ".".join([*shared, "*"]) if shared else "*"
