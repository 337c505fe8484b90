"""The state of torch around a graph, which decides with it what AOTAutograd makes of it and how fast that runs.

Modes belong to a step of the program (gradients, autocast); settings and configuration hold for its whole process.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from frx_graph.errors import TravelError
from frx_graph.serialization.arguments import from_json, to_json
from frx_graph.serialization.schema import SurroundingsDocument
from frx_graph.serialization.torch_settings import (
    CONFIGURATIONS,
    SETTINGS,
    configuration_here,
    put_settings,
    settings_in_force,
)

_DEVICES = ("cpu", "cuda")
"""Autocast has a mode for each type of device."""


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
            stack.callback(put_settings, settings_in_force())
            put_settings(self.settings)
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
    return SurroundingsDocument(
        grad_enabled=torch.is_grad_enabled(),
        autocast={
            device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            for device in _DEVICES
            if torch.is_autocast_enabled(device)
        },
        autocast_cache=torch.is_autocast_cache_enabled(),
        settings={name: to_json(value) for name, value in settings_in_force().items()},
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
    if unknown := [name for name in document.settings if name not in SETTINGS]:
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


def _plain(module: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    plain = {}
    for name, value in changes.items():
        try:
            plain[name] = to_json(value)
        except TravelError as error:
            raise TravelError(f"{module}.{name}: {error.message}") from error
    return plain
