"""`--dtype`, `--device` and `--shape`, checked before any model is loaded."""

from __future__ import annotations

import difflib
import re

import torch

from frx_graph.advisor.target import DTYPES
from frx_graph.errors import OptionError
from frx_graph.rules.gpu_profile import require_gpu

_SIZE = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*([0-9]{1,9})\s*")


def check_dtype(name: str | None) -> torch.dtype | None:
    """Return the type of that name. Raises `OptionError`."""
    if name is None:
        return None
    if name not in DTYPES:
        near = difflib.get_close_matches(name, DTYPES, n=1)
        raise OptionError(f"unknown --dtype {name!r}", f"did you mean {near[0]}?" if near else f"{', '.join(DTYPES)}")
    return DTYPES[name]


def check_device(name: str | None) -> str | None:
    """Return `name` if this torch can compute on that device. Raises `OptionError`."""
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"unknown --device {name!r}", "e.g. cpu, cuda, cuda:1") from error
    if device.type == "meta":
        raise OptionError("--device meta computes nothing", "e.g. cpu, cuda, cuda:1")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"--device {name}: this torch sees no CUDA device", "see frx doctor")
    return name


def check_gpu(name: str | None, *, device: str | None, observe: bool | None) -> str | None:
    """Return `name` if such a GPU is known, and nothing else is asked that takes one here. Raises `OptionError`."""
    if name is None:
        return None
    if device is not None:
        raise OptionError("--for and --device name two places", "leave out one of them")
    if observe:
        raise OptionError(f"--for {name}: a step on a GPU that is not here cannot be observed", "leave out --observe")
    require_gpu(name)
    return name


def parse_shape(text: str) -> tuple[tuple[str, int], ...]:
    """Return sizes by name, from `batch=8,size=224`. Raises `OptionError`."""
    found: dict[str, int] = {}
    for part in text.split(","):
        matched = _SIZE.fullmatch(part)
        if matched is None:
            raise OptionError(f"--shape {text!r}: {part!r} is not NAME=SIZE", "e.g. --shape batch=8,size=224")
        name = matched[1]
        if name in found:
            raise OptionError(f"--shape {text!r} gives {name} twice", "give --shape twice for two trials")
        found[name] = int(matched[2])
    return tuple(found.items())
