"""Make a training script tunable, one line a setting: `frx tune` answers through environment variables.

    loader = DataLoader(data, batch_size=tuning.batch_size(32), **tuning.loader_options(num_workers=2))
    model = tuning.prepare(model)
    for step, batch in enumerate(loader):
        if step == tuning.max_steps():
            break
        with tuning.autocast("cuda"):
            ...

Without these variables each returns the script's own value. None of frx-graph's analysis is imported, and torch only
if it is needed.
"""

from __future__ import annotations

import contextlib
import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    import torch

Model = TypeVar("Model")

_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
_DTYPES = ("bfloat16", "float16")


def max_steps() -> int | None:
    """Return the number of steps after which the script should end as usual; None: no limit."""
    return _count("FRX_TUNE_MAX_STEPS") or None


def batch_size(default: int) -> int:
    """Samples in a batch: `FRX_BATCH_SIZE`."""
    return _count("FRX_BATCH_SIZE") or default


def loader_options(
    *,
    num_workers: int = 0,
    pin_memory: bool = False,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
) -> dict[str, Any]:
    """Keyword arguments of a `DataLoader`: `FRX_NUM_WORKERS`, `FRX_PIN_MEMORY`, `FRX_PREFETCH_FACTOR` and
    `FRX_PERSISTENT_WORKERS`, else those that are given. What needs workers is left out where there are none."""
    wanted = _count("FRX_NUM_WORKERS")
    workers = num_workers if wanted is None else wanted
    options: dict[str, Any] = {"num_workers": workers, "pin_memory": _truth("FRX_PIN_MEMORY", pin_memory)}
    if workers:
        ahead = _count("FRX_PREFETCH_FACTOR") or prefetch_factor
        options |= {} if ahead is None else {"prefetch_factor": ahead}
        options["persistent_workers"] = _truth("FRX_PERSISTENT_WORKERS", persistent_workers)
    return options


def amp_dtype() -> torch.dtype | None:
    """Return the dtype of `autocast`; None: as the script does without."""
    name = os.environ.get("FRX_AMP_DTYPE", "")
    if name not in _DTYPES:
        return None
    import torch

    return torch.bfloat16 if name == "bfloat16" else torch.float16


def autocast(device_type: str) -> AbstractContextManager[Any]:
    """Around the forward pass and the loss: automatic mixed precision in `FRX_AMP_DTYPE` on this kind of device; else
    nothing. float16 needs `grad_scaler`, too."""
    dtype = amp_dtype()
    if dtype is None:
        return contextlib.nullcontext()
    import torch

    return torch.autocast(device_type, dtype=dtype)


def grad_scaler(device_type: str) -> torch.amp.GradScaler:
    """For the backward pass and the optimizer's step: scales only where `autocast` computes in float16."""
    import torch

    return torch.amp.GradScaler(device_type, enabled=amp_dtype() is torch.float16)


def prepare(model: Model) -> Model:
    """The model as it should run: in channels-last (`FRX_CHANNELS_LAST`), compiled (`FRX_TORCH_COMPILE`, with
    `FRX_TORCH_COMPILE_MODE` and `FRX_TORCH_COMPILE_BACKEND`; `FRX_BACKEND_MODE` is the mode of our own backend), with
    CUDA graphs (`FRX_CUDA_GRAPHS`). To be called once it is on its device, and before the optimizer is made; else the
    model itself."""
    channels_last = _truth("FRX_CHANNELS_LAST", False)
    graphs = os.environ.get("FRX_CUDA_GRAPHS") == "try_if_static_shapes"
    compiled = graphs or _truth("FRX_TORCH_COMPILE", False)
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
        ours: Literal["apply", "autopilot"] = "autopilot" if _wanted_mode() == "autopilot" else "apply"
        return {"backend": "frx", "options": {"mode": ours}}
    if graphs:
        # Inductor's mode that records CUDA graphs, for shapes that it may take to be static.
        return {"mode": mode or "reduce-overhead", "dynamic": False}
    return {} if mode is None else {"mode": mode}


def _wanted_mode() -> str:
    return os.environ.get("FRX_BACKEND_MODE", "apply")


def _count(name: str) -> int | None:
    given = os.environ.get(name, "").strip()
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else None


def _truth(name: str, default: bool) -> bool:
    given = os.environ.get(name, "").strip().lower()
    return True if given in _TRUE else False if given in _FALSE else default
