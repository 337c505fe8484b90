"""Analyse a PTX file: the GPU that it targets, and the risks of each kernel.

Registers and spills come from the assembler. Without it only virtual registers are known; a kernel may have hundreds
and need sixteen, so they have little confidence.

PTX for `sm_80` can be assembled for every later architecture, PTX for `sm_90a` only for that one, and PTX for `sm_100f`
only for its family, which shares the first digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.kernels.occupancy_model import compute_most_registers, compute_register_occupancy
from frx_graph.analyzers.kernels.ptx_findings import (
    BRANCH_SHARE,
    FEW_INSTRUCTIONS,
    GLOBAL_SHARE,
    VERY_MANY,
    VIRTUAL_PER_PHYSICAL,
    PtxFinding,
    find_in_kernel,
)
from frx_graph.analyzers.kernels.recommendations import Bottleneck, Recommendation, recommend_cards
from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.evidence.ptx.module import Function, PtxModule
from frx_graph.evidence.ptx.ptxas import Assembled
from frx_graph.rules.gpu_profile import GpuProfile, find_architecture, list_features

MOST_REGISTERS = 255
"""Limit for a thread, since compute capability 3.5."""
MANY_REGISTERS = VERY_MANY
"""Registers per thread at which half of a multiprocessor's 2,048 threads fit beside its 65,536 registers."""
MANY_VIRTUAL = MANY_REGISTERS * VIRTUAL_PER_PHYSICAL
_GLOBAL = (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE)
_MEASURED, _STATIC, _GUESSED = 0.95, 0.6, 0.2


@dataclass(frozen=True, slots=True)
class PtxLabel:
    """One risk of one kernel; `score` and `confidence` are 0..1."""

    label: str
    score: float
    confidence: float
    evidence: str


def label_ptx_kernel(kernel: Function, assembled: Assembled | None) -> tuple[PtxLabel, ...]:
    """Return the labels of a kernel, the highest score first; `assembled` is None if no assembler has run."""
    found = [label for rule in _RULES for label in rule(kernel, assembled)]
    return tuple(sorted(found, key=lambda label: (-label.score, label.label)))


def _detect_spills(_kernel: Function, assembled: Assembled | None) -> Iterator[PtxLabel]:
    if assembled is None or not assembled.spills:
        return
    stores, loads = assembled.spill_store_bytes, assembled.spill_load_bytes
    said = f"{stores} bytes of spill stores and {loads} of loads a thread, at {assembled.registers} registers (ptxas)"
    yield PtxLabel("ptx_register_spills", min(1.0, 0.5 + stores / 512.0), _MEASURED, said)


def _detect_register_pressure(kernel: Function, assembled: Assembled | None) -> Iterator[PtxLabel]:
    if assembled is not None:
        if assembled.registers >= MANY_REGISTERS:
            score = 0.7 * assembled.registers / MOST_REGISTERS
            said = f"{assembled.registers} registers a thread (ptxas)"
            yield PtxLabel("ptx_register_pressure", score, _MEASURED, said)
    elif kernel.virtual_registers >= MANY_VIRTUAL:
        said = (
            f"{kernel.virtual_registers} virtual registers: virtual only, low confidence; ptxas knows how many it needs"
        )
        yield PtxLabel("ptx_register_pressure", 0.2, _GUESSED, said)


def _detect_global_memory(kernel: Function, _assembled: Assembled | None) -> Iterator[PtxLabel]:
    share = sum(kernel.mix.get(kind, 0) for kind in _GLOBAL) / max(kernel.instructions, 1)
    if kernel.instructions >= FEW_INSTRUCTIONS and share > GLOBAL_SHARE:
        said = f"{share:.0%} of {kernel.instructions} instructions read or write global memory"
        yield PtxLabel("ptx_global_memory_heavy", min(1.0, share), _STATIC, said)


def _detect_fp64(kernel: Function, _assembled: Assembled | None) -> Iterator[PtxLabel]:
    count = kernel.mix.get(Kind.FP64, 0) - kernel.reductions
    if count:
        share = count / kernel.instructions
        said = f"{count} of {kernel.instructions} instructions compute in double precision"
        yield PtxLabel("ptx_fp64_usage", min(1.0, 0.3 + share), _STATIC, said)


def _detect_branch_divergence(kernel: Function, _assembled: Assembled | None) -> Iterator[PtxLabel]:
    share = kernel.branches / max(kernel.instructions, 1)
    if kernel.instructions >= FEW_INSTRUCTIONS and share > BRANCH_SHARE:
        said = f"{kernel.branches} of {kernel.instructions} instructions are branches on a predicate"
        yield PtxLabel("ptx_branch_divergence_risk", min(1.0, 2 * share), _GUESSED, said)


_RULES: tuple[Callable[[Function, Assembled | None], Iterator[PtxLabel]], ...] = (
    _detect_spills,
    _detect_register_pressure,
    _detect_global_memory,
    _detect_fp64,
    _detect_branch_divergence,
)


BY_OPTION = "--gpu-model"
BY_TARGET = "the file's target"
_ARCHITECTURE = re.compile(r"sm_(\d{1,4})(?!\d)([af]?)")


@dataclass(frozen=True, slots=True)
class PtxGpu:
    """A target and its GPU. The assembler gets `target`. It supports `features`; `missing` ones need a target of that
    architecture alone (`sm_90a`)."""

    profile: GpuProfile
    known_by: str
    target: str
    features: tuple[str, ...]
    missing: tuple[str, ...]


def resolve_target_gpu(target: str, given: GpuProfile | None) -> PtxGpu | None:
    """Return the GPU to assemble for; None if the target is not listed, or `given` cannot run it."""
    profile = find_architecture(target) if given is None else given
    wanted = _ARCHITECTURE.search(target)
    if profile is None or wanted is None:
        return None
    card = profile.architecture
    found = _ARCHITECTURE.fullmatch(card.architecture)
    if found is None or not _can_run(int(found[1]), int(wanted[1]), wanted[2]):
        return None
    assembled_for = card.architecture + wanted[2]
    features = list_features(card, assembled_for)
    missing = tuple(one for one in card.architecture_specific_features if one not in features)
    return PtxGpu(profile, BY_TARGET if given is None else BY_OPTION, assembled_for, features, missing)


def _can_run(number: int, least: int, suffix: str) -> bool:
    if suffix == "a":
        return number == least
    return number >= least and (suffix == "" or number // 10 == least // 10)


_NAMED = 5
"""Limit on the kernels named for a risk, the worst ones."""


@dataclass(frozen=True, slots=True)
class StaticKernel:
    """An entry with the assembler's result, if any, and its labels. `register_occupancy_pct` is the highest occupancy
    that its registers allow, None if unknown."""

    function: Function
    assembled: Assembled | None
    labels: tuple[PtxLabel, ...]
    findings: tuple[PtxFinding, ...]
    register_occupancy_pct: float | None


@dataclass(frozen=True, slots=True)
class PtxAnalysis:
    """All entries of a file, in order. `gpu` is None if the target is not listed. Every warp fits up to
    `full_occupancy_registers` per thread. `assembled_for` is the architecture that the assembler took instead of the
    file's, which it does not know any more."""

    kernels: tuple[StaticKernel, ...]
    bottlenecks: tuple[Bottleneck, ...]
    recommendations: tuple[Recommendation, ...]
    gpu: PtxGpu | None
    full_occupancy_registers: int | None
    assembled_for: str | None = None


def analyze_ptx_module(
    module: PtxModule, assembled: Mapping[str, Assembled], gpu: PtxGpu | None = None, assembled_for: str | None = None
) -> PtxAnalysis:
    """Analyse the instructions, the assembler's results and the GPU's limits; `assembled` may be empty, and is for
    `assembled_for` if that is not None."""
    limits = None if gpu is None else gpu.profile.architecture.limits
    kernels = []
    for function in module.kernels:
        known = assembled.get(function.name)
        occupancy = None if known is None or limits is None else compute_register_occupancy(limits, known.registers)
        kernels.append(
            StaticKernel(function, known, label_ptx_kernel(function, known), find_in_kernel(function, known), occupancy)
        )
    bottlenecks = _rank_bottlenecks(kernels)
    most = None if limits is None else compute_most_registers(limits)
    return PtxAnalysis(tuple(kernels), bottlenecks, recommend_cards(bottlenecks), gpu, most, assembled_for)


def _rank_bottlenecks(kernels: Sequence[StaticKernel]) -> tuple[Bottleneck, ...]:
    found: dict[str, list[tuple[PtxLabel, StaticKernel]]] = {}
    for kernel in kernels:
        for label in kernel.labels:
            found.setdefault(label.label, []).append((label, kernel))
    bottlenecks = []
    for name, seen in found.items():
        seen.sort(key=lambda one: -one[0].score)
        worst, kernel = seen[0]
        told = kernel.assembled
        known = {} if told is None else {"registers": told.registers, "spill_store_bytes": told.spill_store_bytes}
        bottlenecks.append(
            Bottleneck(
                label=name,
                # The file does not give the number of runs, so the worst kernel counts.
                score=worst.score,
                evidence=tuple(label.evidence for label, _ in seen[:_NAMED]),
                kernels=tuple(one.function.name for _, one in seen[:_NAMED]),
                values=known,
                most_speedup_pct=None,
                confidence=worst.confidence,
            )
        )
    return tuple(sorted(bottlenecks, key=lambda one: (-one.score * one.confidence, one.label)))
