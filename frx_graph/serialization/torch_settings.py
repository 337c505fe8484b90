"""Read and set torch's process-wide settings and the configuration of torch's compilers.

Programs read them at start, so this module imports nothing slow.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import operator
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

from frx_graph.support.torch_internals import get_config_defaults, is_config_default

_BACKENDS = (
    # Older names first: setting them sets the newer ones, and mixing the two makes torch raise.
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

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


def _make_attribute_setting(path: str) -> Setting:
    owner, _, name = path.removeprefix("torch.").rpartition(".")
    holder = operator.attrgetter(owner)
    return lambda: getattr(holder(torch), name), lambda value: setattr(holder(torch), name, value)


SETTINGS: Mapping[str, Setting] = {
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
    **{path: _make_attribute_setting(path) for path in _BACKENDS},
}


def read_torch_settings() -> dict[str, Any]:
    """Return torch's process-wide settings by name, without those that this build lacks, and those that the program has
    set in another way."""
    values = {name: _read(get) for name, (get, _) in SETTINGS.items()}
    return {name: value for name, value in values.items() if value is not None}


def apply_torch_settings(values: Mapping[str, Any]) -> None:
    """Set those that differ to these values, by name, in the order of `SETTINGS`: one may set others, too."""
    for name, (get, put) in SETTINGS.items():
        if name in values and _read(get) != values[name]:
            put(values[name])


def _read(get: Callable[[], Any]) -> Any:
    """Return None if this build has no such setting, or the program has set it in another way."""
    try:
        return get()
    except (AttributeError, RuntimeError):
        return None


CONFIGURATIONS = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")

_DYNAMOS_OWN = frozenset({("torch._functorch.config", "fake_tensor_allow_unsafe_data_ptr_access")})
"""Dynamo changes it while it compiles, and back (`_dynamo/output_graph.py`, torch 2.15 and 2.13)."""

Configuration = Mapping[str, Mapping[str, Any]]
"""Differences from torch's defaults, by module."""


def read_configuration() -> Configuration:
    """Return the present configuration of this thread. All modules are named."""
    return {name: _find_changes(importlib.import_module(name)) for name in CONFIGURATIONS}


@contextlib.contextmanager
def restore_configuration(then: Configuration) -> Iterator[None]:
    """Restore a configuration from `read_configuration` inside: later changes are the defaults again."""
    with contextlib.ExitStack() as stack:
        for name, changes in then.items():
            module = importlib.import_module(name)
            defaults = get_config_defaults(module)
            restored = {key: copy.deepcopy(defaults[key]) for key in _find_changes(module)}
            stack.enter_context(module.patch({**restored, **changes}))
        yield


def _find_changes(module: ModuleType) -> dict[str, Any]:
    changes = {}
    for name, default in get_config_defaults(module).items():
        if is_config_default(module, name) or (module.__name__, name) in _DYNAMOS_OWN:
            continue
        value = getattr(module, name)
        if value != default:
            changes[name] = value
    return changes
