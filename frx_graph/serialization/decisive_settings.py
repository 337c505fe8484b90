"""Return the torch settings that a trial's result depends on, as text that is equal in every process.

A program compiled under other settings has other kernels, precision and speed, though its graph is the same. So these
settings are part of the environment in which a decision holds.
"""

from __future__ import annotations

import json
import re
from typing import Any

from frx_graph.errors import SerializationError
from frx_graph.serialization.arguments import encode_value
from frx_graph.serialization.torch_settings import read_configuration, read_torch_settings

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_NOT_DECISIVE = {
    "torch._dynamo.config": frozenset({
        # These decide the graphs of a program, and how often they are made; a decision is about one graph. Torch itself
        # changes some while it compiles, for `torch.compile(dynamic=..., recompile_limit=...)`.
        "_dynamic_shapes_spec", "accumulated_recompile_limit", "assume_static_by_default",
        "automatic_dynamic_local_pgo", "automatic_dynamic_remote_pgo", "automatic_dynamic_shapes",
        "error_on_recompile", "fail_on_recompile_limit_hit", "recompile_limit",
        "skip_code_recursive_on_recompile_limit_hit",
        # Logging, debugging and caching.
        "caching_precompile", "cprofile", "debug_dir_root", "dynamo_profiler", "fake_tensor_cache_enabled",
        "ignore_logger_methods", "ignore_logging_functions", "issue_3_13_0_warning", "log_compilation_metrics",
        "log_file_name", "reorderable_logging_functions", "report_guard_failures", "strict_precompile",
        "suppress_errors", "verbose",
    }),
    "torch._functorch.config": frozenset({
        "autograd_cache_allow_custom_autograd_functions", "autograd_cache_normalize_inputs", "bundled_autograd_cache",
        "debug_partitioner", "enable_autograd_cache", "enable_remote_autograd_cache", "force_autograd_cache",
        "memory_budget_pareto_dir", "strict_autograd_cache", "torch_compile_graph_format",
        "visualize_memory_budget_pareto",
    }),
    "torch._inductor.config": frozenset({
        # Trials set it themselves, for programs that draw random numbers; others compute the same either way.
        "fallback_random",
        # Caches, processes and names with which the same code is made.
        "autotune_local_cache", "autotune_remote_cache", "bundle_triton_into_fx_graph_cache",
        "bundled_autotune_remote_cache", "compile_threads", "cpp.descriptive_names", "cpp_cache_precompile_headers",
        "force_disable_caches", "fx_graph_cache", "fx_graph_remote_cache", "global_cache_dir", "kernel_name_max_ops",
        "non_blocking_remote_cache_write", "quiesce_async_compile_pool", "quiesce_async_compile_time",
        "remote_gemm_autotune_cache", "triton.descriptive_names", "triton.unique_kernel_names", "worker_start_method",
        # Logging and debugging.
        "autotune_num_choices_displayed", "comment_origin", "debug", "debug_fusion", "developer_warnings",
        "disable_progress", "enabled_metric_tables", "log_tlparse", "max_autotune_report_choices_stats", "save_args",
        "torchinductor_worker_logpath", "verbose_progress", "warn_mix_layout", "worker_log_path",
        "worker_suppress_logging",
    }),
}  # fmt: skip
_MESSAGES = "trace."
"""Prefix of Inductor's settings for the files that it writes."""


def collect_decisive_settings() -> tuple[tuple[str, str], ...]:
    """Return names and values, by name: of torch's process-wide settings, and of changes in its compilers'
    configuration, without those that affect neither results nor speed."""
    found = {name: _format_setting(value) for name, value in read_torch_settings().items()}
    for module, changes in read_configuration().items():
        for name, value in changes.items():
            if name not in _NOT_DECISIVE[module] and not name.startswith(_MESSAGES):
                found[f"{module}.{name}"] = _format_setting(value)
    return tuple(sorted(found.items()))


def _format_setting(value: Any) -> str:
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_format_setting, value)))}}}"
    try:
        return json.dumps(encode_value(value), sort_keys=True)
    except SerializationError:
        # For example a user's own pass: only its name can be compared.
        return _ADDRESS.sub("", repr(value))
