"""Record how Dynamo captured a program: graphs, breaks, guards, recompiles, CUDA-graph skips.

Two processes can compare these facts. They come from private parts of torch (`_dynamo.utils.get_compilation_metrics`,
`_dynamo.convert_frame.input_codes`, `_debug_get_cache_entry_list`, `counters["inductor"]["cudagraph_skips"]`), seen on
2.13 and 2.15. `CaptureFacts.untold` names what a version lacks.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from frx_graph.capture.dynamo_events import (
    count_cudagraph_skips,
    list_breaks_since,
    list_compilations_since,
    list_unreported,
    record_position,
    shorten_reason,
)
from frx_graph.support.torch_internals import convert_frame, dynamo_utils, get_cache_reader, get_metrics_log

_METRICS_KEPT = 100_000
"""Dynamo forgets all but the last 64 (`DEFAULT_COMPILATION_METRICS_LIMIT`); a large model has more."""

_IDENTITY = re.compile(r"^(?P<head>.*___check_\w*id\(.*), \d+\)(?P<rest>, type=<.*>)?$", re.S)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_UNIQUE_NAME = re.compile(r"(?P<name>__builtins_dict_|___unnamed_scope|__resume_at_\d+|__compiled_fn)_+[0-9a-f_]+")
_NAMED_BY_ID = re.compile(r"\b(?P<prefix>\w*?)_\d{11,}_c\w+\b")
"""Any other that `install_global_by_id` names: `_140271496230000_c0` is the module `torch`, without a prefix."""
_LONG_NUMBER = re.compile(r"(?<![\w.])\d{11,}(?![\w.])")
"""Addresses in decimal: `id()` in CPython. No size or stride of a tensor that fits into memory is so large."""


@dataclass(frozen=True, slots=True)
class Break:
    """A place where Dynamo ended the graph, or gave up on a function."""

    place: str
    """`file:line`"""
    reason: str


@dataclass(frozen=True, slots=True)
class CompiledFrame:
    """One frame that Dynamo compiled: a user function, or the rest of one after a graph break."""

    name: str
    place: str
    """`file:line` of the first line"""
    guards: tuple[str, ...]
    """Guards of all compiled versions, each expression once, without object ids."""
    guard_counts: tuple[int, ...]
    """Guards of each compiled version, the newest first."""


@dataclass(frozen=True, slots=True)
class RecompiledFrame:
    """A frame that was compiled again. `step` counts from 0; `reason` is the guard that failed."""

    frame: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """Compilations during some steps. `graphs` counts graphs with operators, each once, however often compiled."""

    steps: int
    graphs: int
    breaks: tuple[Break, ...]
    frames: tuple[CompiledFrame, ...]
    recompiles: tuple[RecompiledFrame, ...]
    cudagraph_skips: int
    cudagraph_skip_reasons: tuple[str, ...]
    """Reasons that torch gives; it counts some skips without one."""
    untold: tuple[str, ...]
    """Subjects that this version of torch does not report: `graph breaks`, `compilations`, `guards`."""


def observe_capture(step: Callable[[int], object], steps: int = 3) -> CaptureFacts:
    """Run `step(0)`, `step(1)`, … and return what Dynamo compiled meanwhile.

    The first step compiles the program, so nothing should have run before; what is already compiled is not in the
    facts. Raises what `step` raises, and `ValueError` for no steps.
    """
    if steps < 1:
        raise ValueError(f"{steps} steps")
    mark = record_position()
    skips = count_cudagraph_skips()
    ends: list[int] = []
    with _keep_all_metrics(), _collect_skip_messages() as messages:
        for number in range(steps):
            step(number)
            ends.append(len(list_compilations_since(mark)))
        compilations = list_compilations_since(mark)
        breaks = list_breaks_since(mark)
        frames, guards_untold = _read_frames(compilations)
    missing = [subject for subject, _ in list_unreported() if subject == "graph breaks"]
    if not hasattr(dynamo_utils, "get_compilation_metrics"):
        missing.append("compilations")
    if guards_untold:
        missing.append("guards")
    reasons = [getattr(c, "cudagraph_skip_reason", None) for c in compilations]
    return CaptureFacts(
        steps=steps,
        graphs=sum(_is_first_compilation(compilation) for compilation in compilations),
        breaks=tuple(Break(str(found.site), shorten_reason(found.reason)) for found in breaks),
        frames=frames,
        recompiles=tuple(_read_recompiles(compilations, ends)),
        cudagraph_skips=max(0, count_cudagraph_skips() - skips),
        cudagraph_skip_reasons=tuple(dict.fromkeys([*messages, *(str(reason) for reason in reasons if reason)])),
        untold=tuple(missing),
    )


def _is_first_compilation(compilation: Any) -> bool:
    """Return True for the first compilation of a Dynamo graph; AOTAutograd's later backward has another entry."""
    return bool(
        compilation.graph_op_count
        and compilation.fail_type is None
        and compilation.recompile_reason is None
        and compilation.is_forward is not False
    )


def _read_recompiles(compilations: list[Any], ends: list[int]) -> Iterator[RecompiledFrame]:
    for position, compilation in enumerate(compilations):
        if compilation.recompile_reason is not None:
            step = sum(end <= position for end in ends)
            # It begins with the number of the compiled version whose guard failed, `0/0: tensor 'x' …`, and the user's
            # stack may follow on separate lines (torch 2.13 and 2.15).
            first = str(compilation.recompile_reason).partition("\n")[0]
            _, _, reason = first.partition(": ")
            frame = f"{compilation.co_name} ({compilation.co_filename}:{compilation.co_firstlineno})"
            yield RecompiledFrame(frame, step, normalize_guard(reason or first))


def _read_frames(compilations: list[Any]) -> tuple[tuple[CompiledFrame, ...], bool]:
    """Return the frames of these compilations, and True if this version of torch does not report their guards."""
    codes = getattr(getattr(convert_frame, "input_codes", None), "seen", None)
    listed = get_cache_reader()
    if codes is None or listed is None:
        return (), True
    versions: defaultdict[tuple[str, str], list[tuple[str, ...]]] = defaultdict(list)
    ours = {str(compilation.compile_id) for compilation in compilations}
    for code in (reference() for reference in codes):
        # Only code objects can have a cache entry; one of a function that is gone has none.
        for entry in () if code is None else listed(code):
            if str(entry.compile_id) in ours:
                place = f"{code.co_filename}:{code.co_firstlineno}"
                versions[code.co_name, place].append(tuple(map(normalize_guard, _read_guard_expressions(entry))))
    return (
        tuple(
            CompiledFrame(
                name=name,
                place=place,
                guards=tuple(dict.fromkeys(guard for version in guards for guard in version)),
                guard_counts=tuple(map(len, guards)),
            )
            for (name, place), guards in versions.items()
        ),
        False,
    )


def _read_guard_expressions(entry: Any) -> list[str]:
    manager = entry.guard_manager
    if not manager.code_parts:
        # Filled at once where guards are checked lazily or loaded from a cache.
        manager.populate_code_parts_for_debugging()
    return list(manager.code_parts)


def normalize_guard(expression: str) -> str:
    """Return `expression`, as `GuardManagerWrapper.code_parts` has it, without what differs between processes.

    That is object ids, addresses, and the serial numbers of names that Dynamo puts into globals
    (`torch/_dynamo/output_graph.py`, `install_global`).
    """
    found = _IDENTITY.match(expression)
    if found is not None:
        expression = f"{found['head']}){found['rest'] or ''}"
    expression = _UNIQUE_NAME.sub(lambda match: match["name"].rstrip("_"), expression)
    expression = _NAMED_BY_ID.sub(r"\g<prefix>_#", expression)
    return _LONG_NUMBER.sub("#", _ADDRESS.sub("0x", expression))


@contextlib.contextmanager
def _keep_all_metrics() -> Iterator[None]:
    """Keep the metrics of all compilations while entered."""
    limit = getattr(dynamo_utils, "set_compilation_metrics_limit", None)
    if limit is None:
        yield
        return
    before = getattr(get_metrics_log(), "maxlen", None)
    limit(_METRICS_KEPT)
    try:
        yield
    finally:
        limit(before or dynamo_utils.DEFAULT_COMPILATION_METRICS_LIMIT)


@contextlib.contextmanager
def _collect_skip_messages() -> Iterator[list[str]]:
    """Collect the warnings of `torch._inductor.cudagraph_utils`, which give the reason of each skip."""
    logger = logging.getLogger("torch._inductor.cudagraph_utils.__cudagraphs")
    texts: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            texts.append(" ".join(record.getMessage().split()))
        return True

    logger.addFilter(note)
    try:
        yield texts
    finally:
        logger.removeFilter(note)
