"""What a PTX file says: the risks of each kernel, and of all together. Nothing of it was measured while it ran."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.kernels.occupancy_model import most_registers, register_occupancy_pct
from frx_graph.analyzers.kernels.ptx_labels import PtxLabel, ptx_labels
from frx_graph.analyzers.kernels.recommendations import Bottleneck, Recommendation, recommendations
from frx_graph.evidence.ptx.module import Function, PtxModule
from frx_graph.evidence.ptx.ptxas import Assembled
from frx_graph.rules.gpu_profile import GpuProfile, architecture_of, features_of

BY_OPTION = "--gpu-model"
BY_TARGET = "the file's target"
_ARCHITECTURE = re.compile(r"sm_(\d{1,4})(?!\d)([af]?)")


@dataclass(frozen=True, slots=True)
class PtxGpu:
    """`target` is what the assembler is given. `features` can be used there, `missing` only with a target of that
    architecture alone (`sm_90a`)."""

    profile: GpuProfile
    known_by: str
    target: str
    features: tuple[str, ...]
    missing: tuple[str, ...]


def gpu_of_target(target: str, given: GpuProfile | None) -> PtxGpu | None:
    """None where the target's architecture is not listed, or `given` cannot run what is for that target."""
    profile = architecture_of(target) if given is None else given
    wanted = _ARCHITECTURE.search(target)
    if profile is None or wanted is None:
        return None
    name = profile.architecture.architecture
    if not _runs(name, int(wanted[1]), wanted[2]):
        return None
    assembled_for = name + wanted[2]
    features = features_of(profile.architecture, assembled_for)
    missing = tuple(one for one in profile.architecture.architecture_specific_features if one not in features)
    return PtxGpu(profile, BY_TARGET if given is None else BY_OPTION, assembled_for, features, missing)


def _runs(architecture: str, least: int, suffix: str) -> bool:
    found = _ARCHITECTURE.fullmatch(architecture)
    if found is None:
        return False
    number = int(found[1])
    if suffix == "a":
        return number == least
    return number >= least and (suffix == "" or number // 10 == least // 10)


_NAMED = 5
"""Kernels of a risk that are named, the worst."""


@dataclass(frozen=True, slots=True)
class StaticKernel:
    """An entry, what the assembler said of it if it was asked, and its labels. `register_occupancy_pct` is the most
    that its registers allow, None where they, or the limits of the GPU, are not known."""

    function: Function
    assembled: Assembled | None
    labels: tuple[PtxLabel, ...]
    register_occupancy_pct: float | None


@dataclass(frozen=True, slots=True)
class PtxAnalysis:
    """All entries of a file, in its order. `gpu` is None where the target is not listed; `full_occupancy_registers` are
    those a thread up to which every warp of its multiprocessors finds place."""

    kernels: tuple[StaticKernel, ...]
    bottlenecks: tuple[Bottleneck, ...]
    recommendations: tuple[Recommendation, ...]
    gpu: PtxGpu | None
    full_occupancy_registers: int | None


def analyse_ptx(module: PtxModule, assembled: Mapping[str, Assembled], gpu: PtxGpu | None = None) -> PtxAnalysis:
    """Everything that follows from the instructions, from what the assembler says, and from the limits of the GPU;
    `assembled` may be empty."""
    limits = None if gpu is None else gpu.profile.architecture.limits
    kernels = []
    for function in module.kernels:
        known = assembled.get(function.name)
        occupancy = None if known is None or limits is None else register_occupancy_pct(limits, known.registers)
        kernels.append(StaticKernel(function, known, ptx_labels(function, known), occupancy))
    bottlenecks = _bottlenecks(kernels)
    most = None if limits is None else most_registers(limits)
    return PtxAnalysis(tuple(kernels), bottlenecks, recommendations(bottlenecks), gpu, most)


def _bottlenecks(kernels: Sequence[StaticKernel]) -> tuple[Bottleneck, ...]:
    found: dict[str, list[tuple[PtxLabel, StaticKernel]]] = {}
    for kernel in kernels:
        for label in kernel.labels:
            found.setdefault(label.label, []).append((label, kernel))
    bottlenecks = []
    for name, seen in found.items():
        seen.sort(key=lambda one: -one[0].score)
        worst, kernel = seen[0]
        bottlenecks.append(
            Bottleneck(
                label=name,
                # How often each kernel runs is not in the file: the worst speaks for all.
                score=worst.score,
                evidence=tuple(label.evidence for label, _ in seen[:_NAMED]),
                kernels=tuple(one.function.name for _, one in seen[:_NAMED]),
                values=_values(kernel.assembled),
                most_speedup_pct=None,
                confidence=worst.confidence,
            )
        )
    return tuple(sorted(bottlenecks, key=lambda one: (-one.score * one.confidence, one.label)))


def _values(assembled: Assembled | None) -> Mapping[str, float]:
    if assembled is None:
        return {}
    return {"registers": assembled.registers, "spill_store_bytes": assembled.spill_store_bytes}
