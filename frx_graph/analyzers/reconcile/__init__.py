"""Diagnose kernels from several layers of evidence. A new diagnosis needs a file here and a line below."""

from __future__ import annotations

from frx_graph.analyzers.reconcile import (
    inefficient_global_memory_access,
    low_occupancy,
    register_pressure_and_spills,
    shared_memory_bank_conflicts,
    synchronization_overhead,
    tensor_cores_unused,
)
from frx_graph.analyzers.reconcile.signal import DiagnosisRule

DIAGNOSES: tuple[DiagnosisRule, ...] = (
    inefficient_global_memory_access.DIAGNOSIS,
    register_pressure_and_spills.DIAGNOSIS,
    shared_memory_bank_conflicts.DIAGNOSIS,
    synchronization_overhead.DIAGNOSIS,
    low_occupancy.DIAGNOSIS,
    tensor_cores_unused.DIAGNOSIS,
)
