"""Read the losses and metrics of a step without making the program wait for a device.

Numbers, and tensors on the CPU, are read at once. Waiting for a tensor on a CUDA (or ROCm) device would empty the
device's queue of work. So its one element is copied into page-locked memory, on the program's stream, without waiting.
That memory holds a special NaN first; the value has arrived as soon as the bits differ, which an ordinary read shows.
The thread that writes the events makes no CUDA call at all, since a call would end a running capture of a CUDA graph.
During a capture nothing is copied either.

These tensors are not read, so their values are unknown: those of more than one element, on `meta` or on other kinds of
devices, and those that find no free place.
"""

from __future__ import annotations

import ctypes
import math
import threading
from typing import Any, TypeAlias

Reading: TypeAlias = "float | PendingScalar"

_PLACES = 512
"""Places of each dtype; at two scalars a step, a device may lag 256 steps behind."""
_NOT_YET = {
    # Quiet NaNs with a payload that no arithmetic gives; by the dtype's name, with the word that holds its bits.
    "torch.float64": (ctypes.c_uint64, 0x7FF8_F0CA_51A1_C0DE),
    "torch.float32": (ctypes.c_uint32, 0x7FE1_C0DE),
    "torch.float16": (ctypes.c_uint16, 0x7F1D),
    "torch.bfloat16": (ctypes.c_uint16, 0x7FED),
}


def get_number(reading: Reading | None) -> float | None:
    """Return the number; None if it is unknown."""
    return reading if reading is None or isinstance(reading, float) else reading.get_value()


def read_scalar(given: Any) -> Reading | None:
    """Return the number, or one that arrives later; None for anything else. Never raises."""
    if type(given) is float:
        return given
    try:
        is_cpu = getattr(given, "is_cpu", None)
        if is_cpu is None:
            return float(given)
        if is_cpu:
            # Of a tensor that has a gradient `float` warns, and `item` does not.
            number = given.item()
            return number if type(number) is float else float(number)
        return DEVICE_SCALARS.fetch(given) if given.is_cuda else None
    except Exception:  # noqa: BLE001 - anything can be handed in
        return None


class DeviceScalars:
    """Places in page-locked memory, for the program's threads. The writer's thread only calls methods of the values."""

    def __init__(self, *, pinned: bool = True) -> None:
        self._pinned = pinned
        self._memory: dict[str, _PinnedPlaces] = {}
        self._lock = threading.Lock()

    def fetch(self, tensor: Any) -> PendingScalar | None:
        """Begin to copy a tensor of one element, behind what its device has to do; None if that cannot be done."""
        import torch

        dtype = str(tensor.dtype)
        if tensor.numel() != 1 or dtype not in _NOT_YET or (self._pinned and torch.cuda.is_current_stream_capturing()):
            return None
        places = self._memory.get(dtype)
        if places is None:
            with self._lock:
                places = self._memory.setdefault(dtype, _PinnedPlaces(tensor.dtype, pinned=self._pinned))
        free = places.take()
        if free is None:
            return None
        try:
            places.tensors[free].copy_(tensor.detach().reshape(()), non_blocking=True)
        except BaseException:
            places.give_back(free)
            raise
        return PendingScalar(places, free)


class _PinnedPlaces:
    """The places of one dtype: tensors to copy into, and the words that hold their bits."""

    def __init__(self, dtype: Any, *, pinned: bool) -> None:
        import torch

        word, self.not_yet = _NOT_YET[str(dtype)]
        with torch.inference_mode(mode=False):
            self._all = torch.empty(_PLACES, dtype=dtype, device="cpu", pin_memory=pinned)
            self.tensors = list(self._all.unbind())
        self.words: Any = (word * _PLACES).from_address(self._all.data_ptr())
        self._free = list(range(_PLACES))

    def take(self) -> int | None:
        """Return a free place, marked as not yet written. A list's `pop` is atomic."""
        try:
            place = self._free.pop()
        except IndexError:
            return None
        self.words[place] = self.not_yet
        return place

    def give_back(self, place: int) -> None:
        """Free a place whose value has arrived: until then the device may write there."""
        self._free.append(place)


class PendingScalar:
    """A value that is being copied to a place."""

    __slots__ = ("_place", "_places", "_value")

    def __init__(self, places: _PinnedPlaces, place: int) -> None:
        self._places = places
        self._place = place
        self._value: float | None = None

    def is_ready(self) -> bool:
        """Return True once it has arrived, or never will."""
        if self._value is None and self._places.words[self._place] != self._places.not_yet:
            number = float(self._places.tensors[self._place].item())
            self._value = math.nan if math.isnan(number) else number
            self._places.give_back(self._place)
        return self._value is not None

    def get_value(self) -> float | None:
        """Return the value; None if it has not arrived."""
        return self._value if self.is_ready() else None


DEVICE_SCALARS = DeviceScalars()
"""The process's own."""
