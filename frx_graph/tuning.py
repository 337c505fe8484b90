"""Make a training script tunable, by one line for each setting: `frx tune` sets them by environment variables.

    loader = DataLoader(data, batch_size=tuning.batch_size(32), **tuning.loader_options(num_workers=2))
    model = tuning.prepare(model)
    for step, batch in enumerate(loader):
        if step == tuning.max_steps():
            break
        with tuning.autocast("cuda"):
            ...

Without these variables each function returns the script's own value. Importing this module imports neither torch nor
the rest of frx-graph.
"""

from __future__ import annotations

import contextlib
import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

Model = TypeVar("Model")

_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
_DTYPES = ("bfloat16", "float16")


def max_steps() -> int | None:
    """Return the number of steps after which the script should end normally; None for no limit."""
    return _read_count("FRX_TUNE_MAX_STEPS") or None


def batch_size(default: int) -> int:
    """Return the samples in a batch: `FRX_BATCH_SIZE`, or else `default`."""
    return _read_count("FRX_BATCH_SIZE") or default


def loader_options(
    *,
    num_workers: int = 0,
    pin_memory: bool = False,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
) -> dict[str, Any]:
    """Return keyword arguments of a `DataLoader`: `FRX_NUM_WORKERS`, `FRX_PIN_MEMORY`, `FRX_PREFETCH_FACTOR` and
    `FRX_PERSISTENT_WORKERS`, or else the given values; without workers, none that need them."""
    wanted = _read_count("FRX_NUM_WORKERS")
    workers = num_workers if wanted is None else wanted
    options: dict[str, Any] = {"num_workers": workers, "pin_memory": _read_flag("FRX_PIN_MEMORY", pin_memory)}
    if workers:
        ahead = _read_count("FRX_PREFETCH_FACTOR") or prefetch_factor
        options |= {} if ahead is None else {"prefetch_factor": ahead}
        options["persistent_workers"] = _read_flag("FRX_PERSISTENT_WORKERS", persistent_workers)
    return options


def amp_dtype() -> torch.dtype | None:
    """Return the dtype of `autocast`; None if the script is to run without."""
    name = os.environ.get("FRX_AMP_DTYPE", "")
    if name not in _DTYPES:
        return None
    import torch

    return torch.bfloat16 if name == "bfloat16" else torch.float16


def autocast(device_type: str) -> AbstractContextManager[Any]:
    """Return a context for forward and loss: mixed precision in `FRX_AMP_DTYPE` (float16: see `grad_scaler`)."""
    dtype = amp_dtype()
    if dtype is None:
        return contextlib.nullcontext()
    import torch

    return torch.autocast(device_type, dtype=dtype)


def grad_scaler(device_type: str) -> torch.amp.GradScaler:
    """Return a scaler for the backward and the optimizer's step; it scales only if `autocast` uses float16."""
    import torch

    return torch.amp.GradScaler(device_type, enabled=amp_dtype() is torch.float16)


def prepare(model: Model) -> Model:
    """Return the model in channels-last (`FRX_CHANNELS_LAST`), compiled (`FRX_TORCH_COMPILE`, with
    `FRX_TORCH_COMPILE_MODE`, `FRX_TORCH_COMPILE_BACKEND`, `FRX_CUDA_GRAPHS` and, for the backend "frx",
    `FRX_BACKEND_MODE`), or as it is. Call it once the model is on its device, before the optimizer is made."""
    channels_last = _read_flag("FRX_CHANNELS_LAST", False)
    graphs = os.environ.get("FRX_CUDA_GRAPHS") == "try_if_static_shapes"
    compiled = graphs or _read_flag("FRX_TORCH_COMPILE", False)
    if not channels_last and not compiled:
        return model
    import torch

    changed: Any = model
    if channels_last:
        changed = changed.to(memory_format=torch.channels_last)
    if compiled:
        changed = torch.compile(changed, **_compile_options(graphs))
    return changed  # type: ignore[no-any-return]


def _compile_options(graphs: bool) -> dict[str, Any]:
    mode = os.environ.get("FRX_TORCH_COMPILE_MODE") or None
    if os.environ.get("FRX_TORCH_COMPILE_BACKEND") == "frx":
        ours = "autopilot" if os.environ.get("FRX_BACKEND_MODE") == "autopilot" else "apply"
        return {"backend": "frx", "options": {"mode": ours}}
    if graphs:
        # Inductor's mode that records CUDA graphs, for static shapes.
        return {"mode": mode or "reduce-overhead", "dynamic": False}
    return {} if mode is None else {"mode": mode}


def _read_count(name: str) -> int | None:
    given = os.environ.get(name, "").strip()
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else None


def _read_flag(name: str, default: bool) -> bool:
    given = os.environ.get(name, "").strip().lower()
    return True if given in _TRUE else False if given in _FALSE else default
