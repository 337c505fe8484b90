"""Read the environment of this process, on which measurements of operators depend."""

from __future__ import annotations

import re

import torch

from frx_graph.measure.machine.device_calibration import get_device_name
from frx_graph.measure.machine.environment_record import MeasurementEnvironment

_ONEDNN_VERSION = re.compile(r"(?:MKL-DNN|oneDNN) v(\S+)")


def get_measurement_environment(device_type: str) -> MeasurementEnvironment:
    """The environment of this process for operators on `device_type` (`cpu`, `cuda`)."""
    on_gpu = device_type == "cuda" and torch.cuda.is_available()
    return MeasurementEnvironment(
        torch=torch.__version__,
        device=device_type,
        device_name=get_device_name(torch.device(device_type if on_gpu else "cpu")),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        onednn=get_onednn_version() or "none",
        threads=torch.get_num_threads(),
        settings=_format_settings(on_gpu),
    )


def get_onednn_version() -> str | None:
    """The version of oneDNN that torch was built with; None if it was built without."""
    found = _ONEDNN_VERSION.search(torch.__config__.show())
    return None if found is None else found[1]


def _get_matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        # It refuses to be read once a program has set the newer switches, of which each device has its own.
        own = {"cuda": torch.backends.cuda.matmul, "mkldnn": getattr(torch.backends.mkldnn, "matmul", None)}
        return " ".join(f"{name}:{getattr(switch, 'fp32_precision', None)}" for name, switch in own.items())


def _format_settings(on_gpu: bool) -> str:
    values = {
        "mkldnn": torch.backends.mkldnn.enabled,
        "matmul_precision": _get_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if on_gpu:
        values |= {
            "cudnn": torch.backends.cudnn.version(),
            "cudnn_enabled": torch.backends.cudnn.enabled,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        }
    return ", ".join(f"{name}={value}" for name, value in values.items())
