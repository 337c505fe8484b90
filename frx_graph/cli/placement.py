"""`--dtype` and `--device`, checked before anything is loaded."""

from __future__ import annotations

import difflib

import torch

from frx_graph.errors import OptionError
from frx_graph.target import DTYPES


def check_dtype(name: str | None) -> torch.dtype | None:
    """The type of that name. Raises `OptionError`."""
    if name is None:
        return None
    if name not in DTYPES:
        near = difflib.get_close_matches(name, DTYPES, n=1)
        raise OptionError(f"unknown --dtype {name!r}", f"did you mean {near[0]}?" if near else f"{', '.join(DTYPES)}")
    return DTYPES[name]


def check_device(name: str | None) -> str | None:
    """`name`, which is that of a device that this torch can compute on. Raises `OptionError`."""
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"unknown --device {name!r}", "e.g. cpu, cuda, cuda:1") from error
    if device.type == "meta":
        raise OptionError("--device meta computes nothing", "e.g. cpu, cuda, cuda:1")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"--device {name}: this torch sees no CUDA device", "frx doctor says why")
    return name
