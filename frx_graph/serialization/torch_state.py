"""Record and restore the torch state around a graph, on which AOTAutograd and the graph's speed depend.

Modes belong to a step of the program (gradients, autocast); settings and configuration hold for its whole process.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from frx_graph.errors import SerializationError
from frx_graph.serialization.arguments import decode_value, encode_value
from frx_graph.serialization.schema import SurroundingsDocument
from frx_graph.serialization.torch_settings import (
    CONFIGURATIONS,
    SETTINGS,
    apply_torch_settings,
    read_configuration,
    read_torch_settings,
)

_DEVICES = ("cpu", "cuda")
"""Autocast has a mode for each type of device."""


@dataclass(frozen=True)
class Surroundings:
    """The state in which a graph was captured, to be restored when it is read."""

    grad_enabled: bool
    autocast: Mapping[str, torch.dtype]
    autocast_cache: bool
    settings: Mapping[str, Any]
    configuration: Mapping[str, Mapping[str, Any]]

    @contextlib.contextmanager
    def process(self) -> Iterator[None]:
        """Restore settings and configuration inside. Enter this before anything is compiled."""
        with contextlib.ExitStack() as stack:
            stack.callback(apply_torch_settings, read_torch_settings())
            apply_torch_settings(self.settings)
            for module, changes in self.configuration.items():
                stack.enter_context(importlib.import_module(module).patch(dict(changes)))
            yield

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Switch gradients and autocast, which keeps converted weights, as they were, for one step."""
        with contextlib.ExitStack() as stack:
            for device, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=self.autocast_cache))
            stack.enter_context(torch.set_grad_enabled(self.grad_enabled))
            yield


def capture_surroundings() -> SurroundingsDocument:
    """Return the present state. Raises `SerializationError` for configuration that is not a plain value, such as a
    user's own pass."""
    modes = capture_modes()
    return SurroundingsDocument(
        grad_enabled=modes.grad_enabled,
        autocast={device: str(dtype).removeprefix("torch.") for device, dtype in modes.autocast.items()},
        autocast_cache=modes.autocast_cache,
        settings={name: encode_value(value) for name, value in read_torch_settings().items()},
        configuration={module: _encode_changes(module, changes) for module, changes in read_configuration().items()},
    )


def capture_modes() -> Surroundings:
    """Return the modes alone, for another thread of this process, which has the same settings and configuration."""
    return Surroundings(
        grad_enabled=torch.is_grad_enabled(),
        autocast={device: torch.get_autocast_dtype(device) for device in _DEVICES if torch.is_autocast_enabled(device)},
        autocast_cache=torch.is_autocast_cache_enabled(),
        settings={},
        configuration={},
    )


def restore_surroundings(document: SurroundingsDocument) -> Surroundings:
    """Return the state that `capture_surroundings` recorded. Raises `SerializationError` for unknown settings."""
    if unknown := [name for name in document.settings if name not in SETTINGS]:
        raise SerializationError(f"torch has no setting {unknown[0]}")
    if unknown := [name for name in document.configuration if name not in CONFIGURATIONS]:
        raise SerializationError(f"{unknown[0]} is not a configuration of torch")
    return Surroundings(
        grad_enabled=document.grad_enabled,
        autocast={device: decode_value({"dtype": name}, {}) for device, name in document.autocast.items()},
        autocast_cache=document.autocast_cache,
        settings={name: decode_value(value, {}) for name, value in document.settings.items()},
        configuration={
            module: {name: decode_value(value, {}) for name, value in changes.items()}
            for module, changes in document.configuration.items()
        },
    )


def _encode_changes(module: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    plain = {}
    for name, value in changes.items():
        try:
            plain[name] = encode_value(value)
        except SerializationError as error:
            raise SerializationError(f"{module}.{name}: {error.message}") from error
    return plain
