"""Sets of metrics for Nsight Compute to measure; more metrics take more passes over each kernel."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from frx_graph.errors import OptionError
from frx_graph.evidence.ncu.metrics import BY_NAME

_VERDICT = ("duration", "compute_throughput", "memory_throughput", "dram_throughput")
_OCCUPANCY = (
    *("achieved_occupancy", "theoretical_occupancy"),
    *(f"block_limit_{what}" for what in ("registers", "shared_memory", "warps", "blocks")),
    *("registers_per_thread", "static_shared_memory", "dynamic_shared_memory", "waves"),
)
_MEMORY = (
    *("dram_bytes_read", "dram_bytes_written", "l1_throughput", "l2_throughput", "l1_hit_rate", "l2_hit_rate"),
    *("sectors_per_load", "sectors_per_store", "shared_bank_conflicts"),
)
_SCHEDULERS = ("issue_slots_busy", "eligible_warps", "scheduler_active")
_STALLS = (
    *("long_scoreboard", "lg_throttle", "tex_throttle", "drain", "short_scoreboard", "mio_throttle", "barrier"),
    *("membar", "sleeping", "wait", "dispatch_stall", "imc_miss", "math_pipe_throttle", "no_instruction"),
    *("branch_resolving", "not_selected", "selected", "misc"),
)
"""All reasons, since a share is a part of their sum."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A question, and the metrics that answer it, by their names here. With `stalls`, the reasons for stalls are also
    measured."""

    name: str
    use: str
    metrics: tuple[str, ...]
    stalls: bool = False

    @property
    def counters(self) -> tuple[str, ...]:
        """Return Nsight Compute's names for the metrics."""
        reasons = _STALLS if self.stalls else ()
        return (
            *(BY_NAME[name].counters[0] for name in self.metrics),
            *(f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio" for reason in reasons),
        )


PRESETS = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            Preset("memory", "DRAM, caches, coalescing, waits for memory", (*_VERDICT, *_MEMORY), stalls=True),
            Preset("tensor", "tensor cores", (*_VERDICT, "tensor_pipe", "achieved_occupancy", "issue_slots_busy")),
            Preset("occupancy", "what keeps blocks from a multiprocessor", (*_VERDICT, *_OCCUPANCY)),
            Preset("stalls", "what warps wait for", (*_VERDICT, *_SCHEDULERS), stalls=True),
            Preset(
                "full",
                "everything, where nothing is known yet",
                (*_VERDICT, *_MEMORY, *_OCCUPANCY, *_SCHEDULERS, "tensor_pipe"),
                stalls=True,
            ),
        )
    }
)


def get_preset(name: str) -> Preset:
    """Return a preset by name. Raises `OptionError`, with a likely alternative, for an unknown one."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=1)
    raise OptionError(f"no preset {name!r}", f"did you mean {near[0]}?" if near else f"one of {', '.join(PRESETS)}")


def build_ncu_arguments(
    preset: Preset,
    command: Sequence[str],
    *,
    output: str,
    kernel: str | None = None,
    launch_skip: int | None = None,
    launch_count: int | None = None,
) -> list[str]:
    """Return the program and the arguments that measure `command` and write the export to the file `output`."""
    # Older versions measure only the first process, but launchers such as torchrun run the kernels in others.
    arguments = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--target-processes", "all"]
    arguments += ["--metrics", ",".join(preset.counters)]
    filters = {"--kernel-name": kernel, "--launch-skip": launch_skip, "--launch-count": launch_count}
    for option, value in filters.items():
        if value is not None:
            arguments += [option, str(value)]
    return [*arguments, "--log-file", output, *command]


def format_shell_line(arguments: Sequence[str]) -> str:
    """Return the arguments as a line for a shell."""
    return shlex.join(arguments)
