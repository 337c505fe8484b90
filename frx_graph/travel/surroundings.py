"""The state of torch around a graph, which decides with it what AOTAutograd makes of it and how fast that runs.

Modes belong to a step of the program (gradients, autocast); settings and configuration hold for its whole process.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from frx_graph.errors import TravelError
from frx_graph.travel.arguments import from_json, to_json
from frx_graph.travel.configuration import CONFIGURATIONS, configuration_here
from frx_graph.travel.documents import SurroundingsDocument

_DEVICES = ("cpu", "cuda")
"""Autocast has a mode for each type of device."""

_BACKENDS = (
    # The older names first: to set them sets the newer ones, and whoever mixes the two gets errors from torch.
    "torch.backends.cudnn.allow_tf32",
    "torch.backends.fp32_precision",
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.backends.cudnn.fp32_precision",
    "torch.backends.cudnn.conv.fp32_precision",
    "torch.backends.cudnn.rnn.fp32_precision",
    "torch.backends.mkldnn.fp32_precision",
    "torch.backends.mkldnn.matmul.fp32_precision",
    "torch.backends.mkldnn.conv.fp32_precision",
    "torch.backends.mkldnn.rnn.fp32_precision",
    "torch.backends.cuda.matmul.allow_fp16_accumulation",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "torch.backends.cudnn.enabled",
    "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.deterministic",
    "torch.backends.mkldnn.enabled",
    "torch.backends.mkldnn.deterministic",
    "torch.backends.opt_einsum.enabled",
    "torch.backends.opt_einsum.strategy",
)

_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


def _attribute(path: str) -> _Setting:
    owner, _, name = path.removeprefix("torch.backends").rpartition(".")

    def holder() -> Any:
        found: Any = torch.backends
        for part in owner.split(".")[1:]:
            found = getattr(found, part)
        return found

    return lambda: getattr(holder(), name), lambda value: setattr(holder(), name, value)


_SETTINGS: Mapping[str, _Setting] = {
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic_algorithms": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "flash_attention": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "memory_efficient_attention": (
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
    ),
    "math_attention": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    "cudnn_attention": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    **{path: _attribute(path) for path in _BACKENDS},
}


@dataclass(frozen=True)
class Surroundings:
    """What was noted where a graph was captured, to be had again where it is read."""

    grad_enabled: bool
    autocast: Mapping[str, torch.dtype]
    autocast_cache: bool
    settings: Mapping[str, Any]
    configuration: Mapping[str, Mapping[str, Any]]

    @contextlib.contextmanager
    def process(self) -> Iterator[None]:
        """Inside, settings and configuration of this process are those of the other; to be entered before anything is
        compiled."""
        with contextlib.ExitStack() as stack:
            for name, value in self.settings.items():
                get, put = _SETTINGS[name]
                before = _read(get)
                if before != value:
                    put(value)
                    stack.callback(put, before)
            for module, changes in self.configuration.items():
                stack.enter_context(importlib.import_module(module).patch(dict(changes)))
            yield

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Inside, gradients and autocast are on or off as they were. To be entered for each step, as programs do:
        autocast keeps what it has converted of the weights until it is left."""
        with contextlib.ExitStack() as stack:
            for device, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=self.autocast_cache))
            stack.enter_context(torch.set_grad_enabled(self.grad_enabled))
            yield


def surroundings_here() -> SurroundingsDocument:
    """The present state. Raises `TravelError` for configuration that is no plain value, such as a pass of the user's
    own."""
    settings = {name: _read(get) for name, (get, _) in _SETTINGS.items()}
    return SurroundingsDocument(
        grad_enabled=torch.is_grad_enabled(),
        autocast={
            device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            for device in _DEVICES
            if torch.is_autocast_enabled(device)
        },
        autocast_cache=torch.is_autocast_cache_enabled(),
        settings={name: to_json(value) for name, value in settings.items() if value is not None},
        configuration={module: _plain(module, changes) for module, changes in configuration_here().items()},
    )


def modes_here() -> Surroundings:
    """The modes alone, for another thread of this process, whose settings and configuration are there."""
    return Surroundings(
        grad_enabled=torch.is_grad_enabled(),
        autocast={device: torch.get_autocast_dtype(device) for device in _DEVICES if torch.is_autocast_enabled(device)},
        autocast_cache=torch.is_autocast_cache_enabled(),
        settings={},
        configuration={},
    )


def surroundings_from(document: SurroundingsDocument) -> Surroundings:
    """What `surroundings_here` has noted. Raises `TravelError` for settings that there are none of."""
    if unknown := [name for name in document.settings if name not in _SETTINGS]:
        raise TravelError(f"torch has no setting {unknown[0]}")
    if unknown := [name for name in document.configuration if name not in CONFIGURATIONS]:
        raise TravelError(f"{unknown[0]} is no configuration of torch's")
    return Surroundings(
        grad_enabled=document.grad_enabled,
        autocast={device: from_json({"dtype": name}, {}) for device, name in document.autocast.items()},
        autocast_cache=document.autocast_cache,
        settings={name: from_json(value, {}) for name, value in document.settings.items()},
        configuration={
            module: {name: from_json(value, {}) for name, value in changes.items()}
            for module, changes in document.configuration.items()
        },
    )


def _read(get: Callable[[], Any]) -> Any:
    """None where this torch or this build has no such setting, or the program has set it in another way."""
    try:
        return get()
    except (AttributeError, RuntimeError):
        return None


def _plain(module: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    plain = {}
    for name, value in changes.items():
        try:
            plain[name] = to_json(value)
        except TravelError as error:
            raise TravelError(f"{module}.{name}: {error.message}") from error
    return plain
