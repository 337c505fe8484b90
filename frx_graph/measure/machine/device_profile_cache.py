"""Measure a device once per torch version and thread count, and cache its profile.

What other programs disturbed is kept, marked, and replaced once they leave the processors alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frx_graph.errors import EvidenceError
from frx_graph.measure.machine.device_calibration import (
    CALIBRATED_DTYPES,
    calibrate,
    get_device_name,
    resolve_device,
)
from frx_graph.measure.machine.device_profile import DeviceProfile, find_implausibility
from frx_graph.measure.machine.disturbance import watch_disturbance
from frx_graph.support.cache_directory import CACHE_VARIABLE, get_cache_directory, write_cache_entry

_IDLE_SECONDS = 0.1
"""Time for which the processors are watched before a profile taken under load is measured again."""
_CHECKED_ENTRIES: set[Path] = set()
"""Entries taken under load that this process has already looked at."""

_AGAIN = "measure again when nothing else runs: frx doctor --measure"


def get_device_profile(device: torch.device | str, *, cache: Path | None = None, measure: bool = True) -> DeviceProfile:
    """Return the profile of `device`, from the cache directory (`cache`, else `get_cache_directory()`) or measured now.

    An unreadable or implausible cache entry is measured again; an unwritable cache is ignored. A measurement that other
    programs disturbed is stored as `under_load`, so that the next call returns the same numbers. Each process that
    finds such an entry looks once if the processors are idle, and if so replaces it by a new measurement.

    Raises `OptionError` as `calibrate` does, and `EvidenceError` for an implausible measurement, or if there is no
    entry and `measure` is False.
    """
    resolved = resolve_device(device)
    path = _get_entry_path(resolved, cache)
    stored = _read_entry(path)
    if stored is not None and not (stored.under_load and measure and _is_worth_measuring_again(path)):
        return stored
    if not measure:
        raise EvidenceError(f"{get_device_name(resolved)} was not measured yet", "let it be measured once")
    try:
        profile = _measure_checked(resolved)
    except EvidenceError:
        if stored is None:
            raise
        return stored
    if stored is not None and profile.under_load:
        return stored
    write_cache_entry(path, _dump_entry(profile))
    return profile


def measure_again(device: torch.device | str, *, cache: Path | None = None) -> DeviceProfile:
    """Measure `device` now, and replace its entry in the cache.

    A measurement that other programs disturbed replaces only one that was disturbed, too.

    Raises `OptionError` as `calibrate` does. Raises `EvidenceError` if a disturbed measurement would replace an
    undisturbed one, the measurement is implausible, or the cache cannot be written; the cache is then unchanged.
    """
    resolved = resolve_device(device)
    path = _get_entry_path(resolved, cache)
    profile = _measure_checked(resolved)
    if profile.under_load and (stored := _read_entry(path)) is not None and not stored.under_load:
        raise EvidenceError("other programs held the processors during the measurement", _AGAIN)
    if not write_cache_entry(path, _dump_entry(profile)):
        raise EvidenceError(f"the measurement cannot be written to {path}", f"set {CACHE_VARIABLE} to another folder")
    return profile


def _is_worth_measuring_again(path: Path) -> bool:
    """Return True if other programs leave the processors alone now. Looks once a process for each entry."""
    if path in _CHECKED_ENTRIES:
        return False
    _CHECKED_ENTRIES.add(path)
    with watch_disturbance() as is_disturbed:
        time.sleep(_IDLE_SECONDS)
        return not is_disturbed()


def _measure_checked(device: torch.device) -> DeviceProfile:
    """Measure the device, and mark the profile if other programs disturbed it."""
    with watch_disturbance() as is_disturbed:
        profile = calibrate(device)
        disturbed = device.type == "cpu" and is_disturbed()
    if (reason := find_implausibility(profile)) is not None:
        raise EvidenceError(f"the measurement of {profile.name} cannot be true: {reason}", _AGAIN)
    return replace(profile, under_load=disturbed)


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in CALIBRATED_DTYPES}


_DtypeName = Literal["float32", "bfloat16", "float16"]


class _StoredProfile(BaseModel):
    """An entry of the cache. In v1 peaks were those of `aten.mm` alone, so v1 entries are measured again."""

    model_config = ConfigDict(extra="forbid")

    version: Literal["frx_device_profile_v2"] = "frx_device_profile_v2"
    device: Literal["cpu", "cuda"]
    name: str
    bandwidth_bytes_per_s: _Positive
    peak_flops: Mapping[_DtypeName, _Positive]
    peak_kernels: Mapping[_DtypeName, str]
    preferred_alignment_bytes: Annotated[int, Field(gt=0)]
    under_load: bool


def _dump_entry(profile: DeviceProfile) -> str:
    names = {dtype: name for name, dtype in _DTYPES.items()}
    by_name = {
        "peak_flops": {names[dtype]: peak for dtype, peak in profile.peak_flops.items()},
        "peak_kernels": {names[dtype]: kernel for dtype, kernel in profile.peak_kernels.items()},
    }
    measured = {name: value for name, value in vars(profile).items() if name != "documented"}
    return _StoredProfile.model_validate({**measured, **by_name}).model_dump_json(indent=1)


def _read_entry(path: Path) -> DeviceProfile | None:
    """Return the entry; None if it is missing or implausible, or of another version."""
    try:
        stored = _StoredProfile.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    if stored.peak_kernels.keys() != stored.peak_flops.keys():
        return None
    profile = DeviceProfile(
        device=stored.device,
        name=stored.name,
        bandwidth_bytes_per_s=stored.bandwidth_bytes_per_s,
        peak_flops={_DTYPES[name]: peak for name, peak in stored.peak_flops.items()},
        preferred_alignment_bytes=stored.preferred_alignment_bytes,
        peak_kernels={_DTYPES[name]: kernel for name, kernel in stored.peak_kernels.items()},
        under_load=stored.under_load,
    )
    return profile if find_implausibility(profile) is None else None


def _get_entry_path(device: torch.device, cache: Path | None) -> Path:
    parts = [device.type, get_device_name(device), f"torch-{torch.__version__}"]
    if device.type == "cpu":
        parts.append(f"{torch.get_num_threads()}-threads")
    name = re.sub(r"[^A-Za-z0-9.+]+", "-", "_".join(parts))
    return (cache or get_cache_directory()) / f"device-{name}.json"
