"""Find call sites in a trace: the user's Python frame above an operator, if the profiler recorded stacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import PurePosixPath

from frx_graph.capture.call_site import CallSite
from frx_graph.evidence.trace.events import Operator
from frx_graph.evidence.trace.tree import NONE, TraceTree

_FRAME = re.compile(r"(?P<file>[^<].*)\((?P<line>\d{1,9})\): (?P<function>.+)", re.DOTALL)
_CALL = re.compile(r"(?P<file>[^<].*):(?P<line>\d{1,9})", re.DOTALL)
_MODULE = "nn.Module: "
_TORCH = re.compile(r"(?:^|(?:^|/)(?:site|dist)-packages/)torch/")
"""torch's own files. The profiler removes `sys.path` entries from the front of file names; older versions do not."""
_WRAPPERS = frozenset({"contextlib.py", "functools.py", "typing.py", "threading.py"})
"""Standard library files between a decorated function and its caller."""
_DEEPEST_STACK = 512


class CallSites:
    """Finds the call site of an operator.

    A backward operator has the site of the forward operator whose gradient it computes: its own stack ends in
    `loss.backward()`. Without recorded stacks the site is the trace itself, the function the outermost operator.
    """

    def __init__(self, tree: TraceTree) -> None:
        self._tree = tree
        self._known: dict[int, CallSite] = {}

    def find_site(self, operator: int) -> CallSite:
        """Return the call site of the operator at an index of the tree."""
        if operator not in self._known:
            self._known[operator] = self._resolve_site(operator)
        return self._known[operator]

    def _resolve_site(self, operator: int) -> CallSite:
        sequence = self._tree.backward_of[operator]
        forward = self._tree.forward_by_sequence.get(sequence) if sequence is not None else None
        site = None
        if forward is not None:
            site = find_site_in_stack(self._iterate_stack(forward))
        elif sequence is None:
            site = find_site_in_stack(self._iterate_stack(operator))
        if site is not None:
            return site
        named = self._tree.operators[operator if forward is None else forward]
        return CallSite(str(self._tree.trace.path), 0, named.name)

    def _iterate_stack(self, operator: int) -> Iterator[tuple[str, str]]:
        """Return the Python frames above an operator, innermost first."""
        frame = self._tree.frame_of[operator]
        if frame == NONE:
            recorded = self._tree.operators[operator].call_stack
            yield from ((name, "") for name in recorded.split(";", _DEEPEST_STACK))
        while frame != NONE:
            yield self._tree.frames[frame].name, self._tree.frames[frame].called_from
            frame = self._tree.frame_parents[frame]


def find_site_in_stack(frames: Iterable[tuple[str, str]]) -> CallSite | None:
    """Return the user's innermost line among frames `(name, called from)`, innermost first; None without one.

    If the line of the call is missing, the line in the frame's name is used. `module_path` lists the classes of the
    modules around it, outermost first: attribute names are not in a trace.
    """
    place: tuple[str, int] | None = None
    function = ""
    modules: list[str] = []
    for name, called_from in islice(frames, _DEEPEST_STACK):
        if name.startswith(_MODULE):
            modules.append(name.removeprefix(_MODULE))
        elif not function and (frame := _FRAME.fullmatch(name)) is not None and not _is_foreign(frame["file"]):
            function = frame["function"]
            place = place or (frame["file"], int(frame["line"]))
        if place is None and (call := _CALL.fullmatch(called_from)) is not None and not _is_foreign(call["file"]):
            place = (call["file"], int(call["line"]))
    return CallSite(*place, function, ".".join(reversed(modules))) if place is not None else None


def has_stacks(operators: Sequence[Operator], frames: int) -> bool:
    """Return True if the profiler ran with `with_stack`."""
    return frames > 0 or any(operator.call_stack for operator in operators)


def _is_foreign(file: str) -> bool:
    return _TORCH.search(file) is not None or PurePosixPath(file).name in _WRAPPERS
