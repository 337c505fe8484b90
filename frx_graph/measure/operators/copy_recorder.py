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
import inspect
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch
from torch.profiler import ProfilerActivity, profile

from frx_graph.errors import EvidenceError
from frx_graph.evidence.onednn import is_log_line, list_implementations, parse_log
from frx_graph.measure.console_capture import (
    STDERR,
    STDOUT,
    CapturedText,
    capture_output,
    drop_kineto_chatter,
    load_c_library,
)
from frx_graph.measure.operators.aten_copies import find_layout_copies
from frx_graph.measure.operators.conversion_kernels import (
    ConvolutionOperands,
    compute_convolution_output,
    find_conversions,
    is_conversion,
)
from frx_graph.measure.operators.onednn_reorders import LayoutReorder, find_layout_reorders
from frx_graph.measure.operators.operator_events import OperatorEvent, convert_events
from frx_graph.measure.operators.operator_measurement import Mechanism, SeenCopy
from frx_graph.support.torch_internals import (
    DeviceType,
    RecordFunctionFast,
    has_onednn,
    is_profiler_enabled,
    mkldnn_set_verbose,
)

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


def keep_events_option(profiler: Callable[..., Any]) -> Mapping[str, Any]:
    """The argument that keeps the profiler quiet about discarded events, where this version of torch has it."""
    return {"acc_events": True} if "acc_events" in inspect.signature(profiler).parameters else {}


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
        self._stack.callback(_running.release)
        try:
            if is_profiler_enabled():
                raise EvidenceError("a torch profiler is already running", "stop it before copies are recorded")
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities, record_shapes=True, **keep_events_option(profile))
            self._stack.callback(self._stop_profiler)
            with capture_output(STDERR, drop_kineto_chatter):
                self._profile.start()
            self._log = self._stack.enter_context(capture_output(STDOUT, _drop_own_output))
            if has_onednn() and mkldnn_set_verbose(_LOG_EXECUTION):
                self._stack.callback(mkldnn_set_verbose, _LOG_NOTHING)
        except BaseException:
            self._stack.close()
            raise
        self._recording = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def _stop_profiler(self) -> None:
        if self._profile is not None and is_profiler_enabled():
            with capture_output(STDERR, drop_kineto_chatter):
                self._profile.stop()

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
        results = None if self._profile is None else self._profile.profiler
        if results is None or results.kineto_results is None:
            return
        calls = _group_calls(convert_events(results.kineto_results.experimental_event_tree()))
        logs = _split_log(self._log.text)
        kernels = _group_kernels(results.kineto_results.events()) if torch.cuda.is_available() else {}
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
                launched, output = _list_launched(call, kernels)
                copies[key].extend(_find_conversions(call, launched, output))
                names[key].extend(kernel for kernel in launched if not is_conversion(kernel))
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
        elif "template:" in line and is_log_line(line):
            headers.append(line)
            if current is not None:
                current.append(line)
        elif current is not None:
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


def _group_kernels(events: Sequence[Any]) -> Mapping[int, tuple[list[str], Any]]:
    """Correlation id of an operator call → the names of the device kernels that it launched itself, and its concrete
    arguments."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    arguments: dict[int, Any] = {}
    for event in sorted(events, key=lambda e: e.start_ns()):
        if event.device_type() == DeviceType.CPU:
            if event.name() == "aten::convolution":
                arguments[event.correlation_id()] = event.concrete_inputs()
        elif event.linked_correlation_id() > 0:
            found[event.linked_correlation_id()].append(event.name())
    return {key: (found.get(key, []), arguments.get(key)) for key in found.keys() | arguments.keys()}


def _list_launched(
    call: OperatorEvent, kernels: Mapping[int, tuple[list[str], Any]]
) -> tuple[list[str], tuple[int, ...] | None]:
    """Return the kernels of a call and everything below it, and the shape of a convolution's result."""
    if not kernels:
        return [], None
    launched = [kernel for event in call.walk_subtree() for kernel in kernels.get(event.correlation, ([], None))[0]]
    arguments = kernels.get(call.correlation, ([], None))[1]
    output = None if arguments is None else compute_convolution_output([t.sizes for t in call.tensors], arguments)
    return launched, output


def _find_conversions(
    call: OperatorEvent, launched: Sequence[str], output: tuple[int, ...] | None
) -> tuple[SeenCopy, ...]:
    if not launched or not call.tensors:
        return ()
    shapes = tuple(tensor.sizes for tensor in call.tensors)
    operands = ConvolutionOperands(call.name, shapes, call.tensors[0].dtype.itemsize, output)
    return find_conversions(launched, operands)


def drop_onednn_log(line: str) -> str:
    """Return the part of a line on standard output that oneDNN did not log."""
    if not is_log_line(line):
        return line
    return line[: min(p for p in (line.find("onednn_verbose,"), line.find("dnnl_verbose,")) if p >= 0)]


def _drop_own_output(line: str) -> str:
    marker = _MARKER.search(line)
    return drop_onednn_log(line) if marker is None else line[: marker.start()]
