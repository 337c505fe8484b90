"""Layers of programs, made by hand: what their sources, PTX and counters say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frx_graph.analyzers.cuda.analysis import detect_cuda_defects
from frx_graph.analyzers.kernels.analysis import analyze_kernels
from frx_graph.analyzers.kernels.kernel_totals import KernelTotals
from frx_graph.analyzers.kernels.ptx_analysis import analyze_ptx_module, resolve_target_gpu
from frx_graph.analyzers.layers import Layers, NcuLayer, PtxLayer, SourceLayer
from frx_graph.evidence.cuda.parsing import parse_cuda
from frx_graph.evidence.ncu.launch import KernelLaunch, NcuExport
from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.evidence.ptx.module import Function, PtxModule
from frx_graph.evidence.ptx.ptxas import Assembled
from frx_graph.rules.gpu_profile import GpuProfile

MIX = {Kind.FP32: 40, Kind.GLOBAL_LOAD: 4, Kind.INTEGER: 20}


def launch(
    kernel: str = "void scale(float *)",
    *,
    us: float | None = 90.0,
    device: str = "0",
    name: str = "NVIDIA H100 80GB HBM3",
    **values: float,
) -> KernelLaunch:
    """One that took `us` microseconds; a stall is written `stall_share__long_scoreboard`."""
    known = {key.replace("__", "."): value for key, value in values.items()}
    if us is not None:
        known["duration"] = us * 1e-6
    return KernelLaunch(
        number="0",
        process="1",
        kernel=kernel,
        device=device,
        compute_capability="9.0",
        grid=(1024, 1, 1),
        block=(256, 1, 1),
        source="report.csv",
        line=2,
        values=known,
        device_name=name,
    )


def ncu(*launches: KernelLaunch) -> NcuLayer:
    """A measurement of these."""
    totals = KernelTotals()
    for one in launches:
        totals.add(one)
    return NcuLayer(NcuExport("report.csv", launches=len(launches)), analyze_kernels(totals.summarize_kernels()))


def measured(*launches: KernelLaunch) -> Layers:
    """Nothing but that."""
    return Layers(ncu=ncu(*launches))


def source(text: str, gpu: GpuProfile | None = None) -> SourceLayer:
    """CUDA source, judged for that GPU, or for any."""
    found = parse_cuda(text, "kernel.cu")
    return SourceLayer(found, detect_cuda_defects(found, gpu))


def function(name: str = "_Z5scalePf", mix: Mapping[Kind, int] = MIX, *, virtual: int = 100) -> Function:
    """An entry of PTX."""
    return Function(
        name=name,
        entry=True,
        linkage="visible",
        line=1,
        mix=mix,
        virtual_registers=virtual,
        local_bytes=0,
        shared_bytes=0,
        branches=1,
        loops=(),
        capabilities=frozenset(),
        calls=frozenset(),
        tuning=(),
    )


def ptx(*functions: Function, assembled: Sequence[Assembled | None] = (), target: str = "sm_90") -> PtxLayer:
    """PTX of these, and what the assembler says of each, if it was asked."""
    module = PtxModule("kernel.ptx", "9.0", target, functions, ())
    told = {one.name: said for one, said in zip(functions, assembled, strict=False) if said is not None}
    return PtxLayer(
        module, analyze_ptx_module(module, told, resolve_target_gpu(target, None)), None if told else "no ptxas"
    )
