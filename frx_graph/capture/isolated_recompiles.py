"""What to give `torch.compile` for a cache of its own, where torch offers one (2.13 and 2.15 do): by default all models
of a class have one together, and one limit of compilations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

_NAME = "isolate_recompiles"

ISOLATED: Mapping[str, Any] = MappingProxyType(
    {_NAME: True} if _NAME in inspect.signature(torch.compile).parameters else {}
)
