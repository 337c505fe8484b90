from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pynvml
import pytest

from frx_graph.measure.machine import device_state, gpus_present
from frx_graph.measure.machine.gpus_present import gpu_names


class Driver(ModuleType):
    """NVML that knows devices of these names; fails where it is given an error."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *names: Any, error: int | None = None) -> None:
        super().__init__("driver")
        self._names, self._error = names, error

    def nvmlDeviceGetCount(self) -> int:
        if self._error is not None:
            raise pynvml.NVMLError(self._error)
        return len(self._names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return self._names[handle]


def test_names_in_order() -> None:
    assert gpu_names(Driver("NVIDIA H100", b"NVIDIA L4"), {}) == ("NVIDIA H100", "NVIDIA L4")
    assert gpu_names(Driver(), {}) == ()


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("-1", 0), ("0", 1), ("GPU-1", 1)])
def test_hidden_ones_are_not_there(visible: str, count: int) -> None:
    assert len(gpu_names(Driver("NVIDIA L4"), {"CUDA_VISIBLE_DEVICES": visible})) == count


def test_a_driver_that_fails_has_none() -> None:
    assert gpu_names(Driver("NVIDIA L4", error=pynvml.NVML_ERROR_GPU_IS_LOST), {}) == ()


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus_present, "loaded_nvml", lambda: None)
    assert gpu_names(environ={}) == ()
    monkeypatch.setattr(importlib, "import_module", lambda _: (_ for _ in ()).throw(ImportError()))
    assert device_state.loaded_nvml() is None
