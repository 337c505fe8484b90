"""Records the layout copies that real code makes, region by region, as the profiler and the oneDNN log show them.

    with CopyRecorder() as recorder:
        with recorder.region("first"):
            model.conv(x)
    recorder.copies("first")            # tuple[SeenCopy, ...]: oneDNN reorders, aten::copy_, conversion kernels
    recorder.implementations("first")   # ("brg_conv_fwd:avx512_core",)

`aten_copies` and `onednn_reorders` define a layout copy. Regions follow one another and do not nest. A key may be used
again; its copies add up. A region costs about 10 µs. Results are available once the recorder has been left, also after
an exception.

While a recorder runs, the process's standard output goes to a temporary file, because oneDNN logs there. Other output
appears afterwards. The profiler's messages on standard error are dropped.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import torch
from torch.profiler import profile

from frx_graph.errors import EvidenceError
from frx_graph.evidence.onednn import is_log_line, list_implementations, parse_log
from frx_graph.measure.console_capture import STDOUT, CapturedText, capture_output, load_c_library
from frx_graph.measure.operators.aten_copies import find_layout_copies
from frx_graph.measure.operators.conversion_kernels import (
    ConvolutionOperands,
    compute_convolution_output,
    find_conversions,
    is_conversion,
)
from frx_graph.measure.operators.onednn_reorders import LayoutReorder, find_layout_reorders
from frx_graph.measure.operators.operator_events import (
    OperatorEvent,
    convert_events,
    get_kineto_results,
    run_profiler,
)
from frx_graph.measure.operators.operator_measurement import Mechanism, SeenCopy
from frx_graph.support.torch_internals import DeviceType, RecordFunctionFast, has_onednn, mkldnn_set_verbose

_BEGIN, _END = "frx::region#", "frx::outside"
_MARKER = re.compile(rf"(?:{_BEGIN}(?P<region>\d+)|{_END})\r?\n?$")
_LOG_NOTHING, _LOG_EXECUTION = 0, 1
_OPERAND_OF: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "aten::convolution": {"src": 0, "wei": 1},
        "aten::convolution_backward": {"dst": 0, "src": 1, "wei": 2},
    }
)
"""Operator → oneDNN's argument name → position among the operator's tensor arguments."""

_running = threading.Lock()


class CopyRecorder:
    """Records inside `with`; see the module's text. Raises `EvidenceError` if another recorder or torch profiler is
    already running: the profiler exists once per process."""

    def __init__(self) -> None:
        self._keys: list[Hashable] = []
        self._recording = False
        self._inside = False
        self._puts = load_c_library().puts
        self._stack = contextlib.ExitStack()
        self._log = CapturedText()
        self._profile: profile | None = None
        self._copies: dict[Hashable, tuple[SeenCopy, ...]] = {}
        self._implementations: dict[Hashable, tuple[str, ...]] = {}

    def __enter__(self) -> Self:
        if not _running.acquire(blocking=False):
            raise EvidenceError(
                "a copy recorder is already running in this process", "leave it before another one is started"
            )
        with contextlib.ExitStack() as stack:
            stack.callback(_running.release)
            profiler = run_profiler("copies are recorded", on_gpu=torch.cuda.is_available(), record_shapes=True)
            self._profile = stack.enter_context(profiler)
            self._log, _ = stack.enter_context(capture_onednn_log(_drop_own_output))
            self._stack = stack.pop_all()
        self._recording = True
        return self

    def __exit__(self, *_: object) -> None:
        self._recording = False
        self._stack.close()
        self._collect()

    def open_region(self, key: Hashable) -> contextlib.AbstractContextManager[None]:
        """A context manager; what runs inside is recorded under `key`."""
        return _Region(self, key)

    def get_copies(self, key: Hashable) -> tuple[SeenCopy, ...]:
        """The layout copies of the regions with this key; none for a key that was never used."""
        return self._copies.get(key, ())

    def get_implementations(self, key: Hashable) -> tuple[str, ...]:
        """The libraries' names for the kernels that ran: oneDNN's on the CPU, device kernels on a GPU."""
        return self._implementations.get(key, ())

    def _begin(self, key: Hashable) -> str:
        if not self._recording:
            raise RuntimeError("a region needs a copy recorder that is running")
        if self._inside:
            raise RuntimeError("regions of a copy recorder do not nest")
        self._inside = True
        name = f"{_BEGIN}{len(self._keys)}"
        self._keys.append(key)
        self._puts(name.encode())
        return name

    def _end(self) -> None:
        self._puts(_END.encode())
        self._inside = False

    def _collect(self) -> None:
        results = None if self._profile is None else get_kineto_results(self._profile)
        if results is None:
            return
        calls = _group_calls(convert_events(results.experimental_event_tree()))
        logs = _split_log(self._log.text)
        kernels, arguments = _group_kernels(results.events()) if torch.cuda.is_available() else ({}, {})
        copies: defaultdict[Hashable, list[SeenCopy]] = defaultdict(list)
        names: defaultdict[Hashable, list[str]] = defaultdict(list)
        for number, key in enumerate(self._keys):
            made = calls.get(number, ())
            copies[key].extend(find_layout_copies(made))
            primitives = parse_log(logs.get(number, ()))
            operator = next((call.name for call in made if call.name in _OPERAND_OF), "")
            copies[key].extend(_make_seen_copy(reorder, operator) for reorder in find_layout_reorders(primitives))
            names[key].extend(list_implementations(primitives))
            for call in made:
                launched = [name for event in call.walk_subtree() for name in kernels.get(event.correlation, ())]
                copies[key].extend(_find_conversions(call, launched, arguments.get(call.correlation)))
                names[key].extend(name for name in launched if not is_conversion(name))
        self._copies = {key: tuple(found) for key, found in copies.items()}
        self._implementations = {key: tuple(dict.fromkeys(found)) for key, found in names.items()}


class _Region:
    """Marks its beginning and end in both streams. A plain class: several thousand are entered in one step."""

    __slots__ = ("_event", "_key", "_recorder")

    def __init__(self, recorder: CopyRecorder, key: Hashable) -> None:
        self._recorder, self._key = recorder, key

    def __enter__(self) -> None:
        self._event = RecordFunctionFast(self._recorder._begin(self._key))
        self._event.__enter__()

    def __exit__(self, *_: object) -> None:
        self._event.__exit__(None, None, None)
        self._recorder._end()


def _group_calls(events: Sequence[OperatorEvent]) -> Mapping[int, tuple[OperatorEvent, ...]]:
    """Region number → the operator calls made in it. Calls on other threads (autograd's, on a GPU) belong to the region
    that was open when they began."""
    regions: list[tuple[int, int, int]] = []
    calls: defaultdict[int, list[OperatorEvent]] = defaultdict(list)

    def visit(event: OperatorEvent) -> bool:
        """True if `event` is a region or holds one."""
        if event.name.startswith(_BEGIN):
            number = int(event.name.removeprefix(_BEGIN))
            regions.append((event.start_ns, event.start_ns + event.duration_ns, number))
            calls[number].extend(event.children)
            return True
        below = [visit(child) for child in event.children]
        return any(below)

    elsewhere = [root for root in events if not visit(root)]
    regions.sort()
    position = 0
    for event in sorted(elsewhere, key=lambda e: e.start_ns):
        while position < len(regions) and regions[position][1] < event.start_ns:
            position += 1
        if position < len(regions) and regions[position][0] <= event.start_ns:
            calls[regions[position][2]].append(event)
    return {number: tuple(found) for number, found in calls.items()}


def _split_log(text: str) -> Mapping[int, Sequence[str]]:
    """Region number → the log lines between its two markers. Header lines are given to every region behind them."""
    headers: list[str] = []
    regions: dict[int, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        marker = _MARKER.search(line)
        if marker is not None:
            number = marker["region"]
            current = None if number is None else regions.setdefault(int(number), list(headers))
            continue
        if "template:" in line and is_log_line(line):
            headers.append(line)
        if current is not None:
            current.append(line)
    return regions


def _make_seen_copy(reorder: LayoutReorder, operator: str) -> SeenCopy:
    return SeenCopy(
        mechanism=Mechanism.ONEDNN,
        shape=reorder.shape,
        itemsize=reorder.itemsize,
        source=reorder.source,
        target=reorder.target,
        role=reorder.role,
        operand=None if reorder.result else _OPERAND_OF.get(operator, {}).get(reorder.argument),
    )


def _group_kernels(events: Sequence[Any]) -> tuple[Mapping[int, list[str]], Mapping[int, Any]]:
    """By correlation id of an operator call: the device kernels that it launched itself, a convolution's arguments."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    arguments: dict[int, Any] = {}
    for event in sorted(events, key=lambda e: e.start_ns()):
        if event.device_type() == DeviceType.CPU:
            if event.name() == "aten::convolution":
                arguments[event.correlation_id()] = event.concrete_inputs()
        elif event.linked_correlation_id() > 0:
            found[event.linked_correlation_id()].append(event.name())
    return found, arguments


def _find_conversions(call: OperatorEvent, launched: Sequence[str], arguments: Any) -> tuple[SeenCopy, ...]:
    if not launched or not call.tensors:
        return ()
    shapes = tuple(tensor.sizes for tensor in call.tensors)
    output = None if arguments is None else compute_convolution_output(shapes, arguments)
    return find_conversions(launched, ConvolutionOperands(call.name, shapes, call.tensors[0].dtype.itemsize, output))


@contextlib.contextmanager
def capture_onednn_log(foreign: Callable[[str], str]) -> Iterator[tuple[CapturedText, bool]]:
    """Capture standard output with oneDNN's log, `foreign` as in `capture_output`; False where this build of torch is
    without it or without its log."""
    with capture_output(STDOUT, foreign) as log:
        logging = has_onednn() and bool(mkldnn_set_verbose(_LOG_EXECUTION))
        try:
            yield log, logging
        finally:
            if logging:
                mkldnn_set_verbose(_LOG_NOTHING)


def drop_onednn_log(line: str) -> str:
    """Return the part of a line on standard output that oneDNN did not log."""
    if not is_log_line(line):
        return line
    return line[: min(p for p in (line.find("onednn_verbose,"), line.find("dnnl_verbose,")) if p >= 0)]


def _drop_own_output(line: str) -> str:
    marker = _MARKER.search(line)
    return drop_onednn_log(line) if marker is None else line[: marker.start()]
