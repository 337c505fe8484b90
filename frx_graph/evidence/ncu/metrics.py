"""Metrics of a launch, under their names in exports of Nsight Compute.

A metric has a counter's name (`--page raw`, `--metrics`) and a label (`--page details`). Labels are not unique: "Memory
Throughput" is a percentage of the peak in one section and bytes per second in another, so a label needs its unit.
Counters: https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#metrics-reference. Labels come from the
details page; older ones follow.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from frx_graph.evidence.units import Unit, parse_unit

COUNT = "count"
"""The unit of numbers, and of counts: instructions, blocks, registers per thread."""
PERCENT = "%"
_QUANTITIES = frozenset({PERCENT, "s", "hz", "byte", "byte/s"})


class Fold(enum.StrEnum):
    """Ways to combine a metric of several launches."""

    MEAN = "mean"
    """Weighted by each launch's time."""
    SUM = "sum"
    FIRST = "first"
    """A property that all launches must share; otherwise unknown."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric; values are converted to `unit`."""

    name: str
    unit: str
    counters: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    fold: Fold = Fold.MEAN
    of_peak: bool = False
    """A share of a peak, which cannot be below 0 or above 100 %."""


_MOST_OF_PEAK_PCT = 110.0
"""The counters of one figure are taken in several passes, so that a full peak may read a few percent more."""


def _define_peak_share(name: str, *counters: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, PERCENT, counters, labels, of_peak=True)


def _define_total(name: str, *counters: str, unit: str = COUNT) -> Metric:
    return Metric(name, unit, counters, fold=Fold.SUM)


def _define_property(name: str, counter: str, label: str, unit: str = COUNT) -> Metric:
    return Metric(name, unit, (counter,), (label,), Fold.FIRST)


METRICS: tuple[Metric, ...] = (
    Metric("duration", "s", ("gpu__time_duration.sum", "gpu__time_duration_sum", "duration"), ("Duration",), Fold.SUM),
    Metric(
        "sm_frequency",
        "hz",
        ("smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second"),
        ("SM Frequency",),
    ),
    Metric("dram_frequency", "hz", ("dram__cycles_elapsed.avg.per_second",), ("DRAM Frequency",)),
    # Speed of Light
    _define_peak_share(
        "compute_throughput",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        labels=("Compute (SM) Throughput", "Compute (SM) [%]", "SM [%]", "SOL SM"),
    ),
    _define_peak_share(
        "memory_throughput",
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        labels=("Memory Throughput", "Memory [%]", "SOL Memory"),
    ),
    _define_peak_share(
        "dram_throughput",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        labels=("DRAM Throughput", "SOL DRAM"),
    ),
    _define_peak_share(
        "l1_throughput",
        "l1tex__throughput.avg.pct_of_peak_sustained_active",
        labels=("L1/TEX Cache Throughput", "SOL L1/TEX Cache"),
    ),
    _define_peak_share(
        "l2_throughput",
        "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        labels=("L2 Cache Throughput", "SOL L2 Cache"),
    ),
    # Memory
    Metric("dram_bandwidth", "byte/s", ("dram__bytes.sum.per_second",), ("Memory Throughput", "DRAM Bandwidth")),
    _define_total("dram_bytes", "dram__bytes.sum", unit="byte"),
    _define_total("dram_bytes_read", "dram__bytes_read.sum", "dram__bytes_op_read.sum", unit="byte"),
    _define_total("dram_bytes_written", "dram__bytes_write.sum", "dram__bytes_op_write.sum", unit="byte"),
    Metric("l1_hit_rate", PERCENT, ("l1tex__t_sector_hit_rate.pct",), ("L1/TEX Hit Rate", "L1 Hit Rate")),
    Metric("l2_hit_rate", PERCENT, ("lts__t_sector_hit_rate.pct",), ("L2 Hit Rate",)),
    *(
        Metric(
            f"sectors_per_{what}",
            COUNT,
            (
                f"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{op}.ratio",
                f"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{op}",
            ),
        )
        for what, op in (("load", "ld"), ("store", "st"))
    ),
    *(
        metric
        for what, op in (("load", "ld"), ("store", "st"))
        for counter in (f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}",)
        for metric in (
            Metric(f"{what}_bytes_per_sector", "byte/sector", (f"{counter}.ratio",)),
            Metric(f"{what}_sector_use", PERCENT, (f"{counter}.pct",)),
        )
    ),
    _define_total("load_sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"),
    _define_total("load_requests", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"),
    _define_total("store_sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"),
    _define_total("store_requests", "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"),
    _define_total("local_load_sectors", "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum"),
    _define_total("local_store_sectors", "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum"),
    _define_total("shared_wavefronts", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
    _define_total("shared_bank_conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
    *(
        _define_total(f"shared_{what}_bank_conflicts", f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum")
        for what, op in (("load", "ld"), ("store", "st"))
    ),
    # Issue
    _define_peak_share(
        "issue_slots_busy",
        "sm__issue_active.avg.pct_of_peak_sustained_active",
        "sm__inst_issued.avg.pct_of_peak_sustained_active",
        "smsp__issue_active.avg.pct_of_peak_sustained_active",
        labels=("Issue Slots Busy",),
    ),
    Metric("eligible_warps", COUNT, ("smsp__warps_eligible.avg.per_cycle_active",), ("Eligible Warps Per Scheduler",)),
    Metric("active_warps", COUNT, ("smsp__warps_active.avg.per_cycle_active",), ("Active Warps Per Scheduler",)),
    _define_peak_share("no_eligible", "smsp__issue_inst0.avg.pct_of_peak_sustained_active", labels=("No Eligible",)),
    Metric("threads_per_instruction", COUNT, ("smsp__thread_inst_executed_per_inst_executed.ratio",)),
    _define_peak_share("scheduler_active", "smsp__warps_active.avg.pct_of_peak_sustained_active"),
    # Occupancy
    _define_peak_share(
        "achieved_occupancy",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "achieved_occupancy.pct",
        labels=("Achieved Occupancy",),
    ),
    _define_peak_share(
        "theoretical_occupancy", "sm__maximum_warps_per_active_cycle_pct", labels=("Theoretical Occupancy",)
    ),
    _define_property("block_limit_registers", "launch__occupancy_limit_registers", "Block Limit Registers"),
    _define_property("block_limit_shared_memory", "launch__occupancy_limit_shared_mem", "Block Limit Shared Mem"),
    _define_property("block_limit_warps", "launch__occupancy_limit_warps", "Block Limit Warps"),
    _define_property("block_limit_blocks", "launch__occupancy_limit_blocks", "Block Limit SM"),
    _define_property("block_limit_barriers", "launch__occupancy_limit_barriers", "Block Limit Barriers"),
    # Launch
    _define_property("registers_per_thread", "launch__registers_per_thread", "Registers Per Thread"),
    _define_property("waves", "launch__waves_per_multiprocessor", "Waves Per SM"),
    _define_property("sm_count", "launch__sm_count", "# SMs"),
    _define_property(
        "static_shared_memory", "launch__shared_mem_per_block_static", "Static Shared Memory Per Block", "byte"
    ),
    _define_property(
        "dynamic_shared_memory", "launch__shared_mem_per_block_dynamic", "Dynamic Shared Memory Per Block", "byte"
    ),
    # Arithmetic
    _define_peak_share(
        "tensor_pipe",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    _define_total(
        "tensor_instructions",
        "sm__inst_executed_pipe_tensor.sum",
        "sm__inst_executed_pipe_tensor_op_hmma.sum",
        "sm__inst_executed_pipe_tensor_op_hmma.avg",
    ),
    # Operations; a fused multiply-add is two, so a product of 4864 x 1024 x 128 counts 2 x 4864 x 1024 x 128.
    *(
        _define_total(f"tensor_{operands}_operations", f"sm__ops_path_tensor_src_{operands}_dst_fp32.sum")
        for operands in ("fp16", "bf16", "tf32")
    ),
    _define_total("fp32_add", "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"),
    _define_total("fp32_mul", "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum"),
    _define_total("fp32_fma", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"),
    _define_total("fp64_instructions", "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum"),
    Metric(
        "fp32_peak_fma_per_cycle",
        COUNT,
        ("sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained",),
        ("Theoretical Predicated-On FFMA Thread Instructions Executed",),
        Fold.FIRST,
    ),
    *(
        Metric(
            f"fp32_{operation}_per_cycle",
            COUNT,
            (f"smsp__sass_thread_inst_executed_op_{counter}_pred_on.sum.per_cycle_elapsed",),
            (f"Predicated-On {counter.upper()} Thread Instructions Executed Per Cycle",),
        )
        for operation, counter in (("add", "fadd"), ("mul", "fmul"), ("fma", "ffma"))
    ),
)
BY_NAME: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in METRICS})

_STALLS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active(?:\.ratio)?", "stall_cycles"),
        (r"smsp__average_warp_latency_issue_stalled_(\w+)(?:\.ratio)?", "stall_cycles"),
        (r"smsp__warp_issue_stalled_(\w+)_per_warp_active(?:\.pct)?", "stall_share"),
        (r"smsp__pcsamp_warps_issue_stalled_(\w+)", "stall_samples"),
    )
)
"""Waiting time of warps by reason: cycles per instruction, a share of their resident time, or samples."""


def format_stall_name(kind: str, reason: str) -> str:
    """The name of a metric of warp stalls: `stall_share.long_scoreboard`."""
    return f"{kind}.{reason}"


@dataclass(frozen=True, slots=True)
class ScaledMetric:
    """A metric, and the `factor` that converts a value to its unit."""

    name: str
    factor: float
    of_peak: bool = False

    def is_possible(self, value: float) -> bool:
        """Return False for a share of a peak, in percent, below 0 or clearly above 100."""
        return not self.of_peak or 0 <= value <= _MOST_OF_PEAK_PCT


def resolve_metric(name: str, unit: str) -> ScaledMetric | None:
    """Return the metric that an export calls `name`, measured in `unit`; None for one that is not used here. Raises
    `ValueError` for a metric with an impossible unit."""
    wanted = _BY_EXPORTED_NAME.get(name.lower()) or tuple(_match_stall_metric(name))
    if not wanted:
        return None
    found = parse_unit(unit)
    for metric in wanted:
        if found is not None and (factor := _get_factor(found, metric.unit)) is not None:
            return ScaledMetric(metric.name, factor, metric.of_peak)
    raise ValueError(f"{name} in {unit!r}")


def _get_factor(unit: Unit, wanted: str) -> float | None:
    if wanted == COUNT:
        # Units of counts vary with the version: registers per thread are `register/thread` or nothing.
        return None if unit.name in _QUANTITIES else unit.factor
    if wanted == "byte" and unit.name == "byte/block":
        return unit.factor
    return unit.factor if unit.name == wanted else None


def _match_stall_metric(name: str) -> Iterator[Metric]:
    for pattern, kind in _STALLS:
        # Stalls while another warp issues are counted separately, and also in the total.
        if (found := pattern.fullmatch(name)) and not found[1].endswith("_not_issued"):
            yield Metric(format_stall_name(kind, found[1]), PERCENT if kind == "stall_share" else COUNT)


def _index_metrics() -> Mapping[str, tuple[Metric, ...]]:
    found: dict[str, tuple[Metric, ...]] = {}
    for metric in METRICS:
        for name in (*metric.counters, *metric.labels):
            found[name.lower()] = (*found.get(name.lower(), ()), metric)
    return MappingProxyType(found)


_BY_EXPORTED_NAME = _index_metrics()
