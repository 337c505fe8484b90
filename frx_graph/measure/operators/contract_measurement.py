"""Measure an operator layout contract: every case of the table, over every class of strides of every operand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frx_graph.facts.layout import StridePattern
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.measure.machine.measurement_environment import get_measurement_environment
from frx_graph.measure.operators.contract_cases import MEASURED_DTYPES, Case, make_representatives
from frx_graph.measure.operators.operator_call import measure_operators
from frx_graph.measure.operators.operator_contract import (
    ContractEntry,
    ContractRow,
    OperatorContract,
    make_contract_name,
    merge_entries,
)
from frx_graph.measure.operators.operator_inputs import run_on_meta
from frx_graph.measure.operators.operator_measurement import Mechanism, OperatorMeasurement, SeenCopy
from frx_graph.support.torch_internals import pytree


@dataclass(frozen=True, slots=True)
class ContractTrial:
    """One call of the measurement: a case with one operand in one class of strides. If `operand` is None, the results
    are examined; the call is that of operand 0."""

    case: Case
    dtype: torch.dtype
    operand: int | None
    pattern: StridePattern
    signature: OperatorSignature

    @property
    def rank(self) -> int:
        """Number of dimensions of the operand, for the results of the first one."""
        return len(self.case.operands[self.operand or 0].shape)


def plan_trials(
    cases: Iterable[Case], device: str, dtypes: Sequence[torch.dtype] = MEASURED_DTYPES
) -> tuple[ContractTrial, ...]:
    """Every call that a contract over `cases` needs, in the contract's order."""
    found: list[ContractTrial] = []
    for case in cases:
        for dtype in dtypes:
            for number, operand in enumerate(case.operands):
                if not operand.varied:
                    continue
                for pattern, strides in make_representatives(operand.shape):
                    signature = case.make_signature(dtype, device, number, strides)
                    examined = (number, None) if number == 0 else (number,)
                    found.extend(ContractTrial(case, dtype, which, pattern, signature) for which in examined)
    return tuple(found)


def measure_contract(
    cases: Sequence[Case],
    device: str,
    *,
    dtypes: Sequence[torch.dtype] = MEASURED_DTYPES,
    progress: Callable[[OperatorSignature], None] = lambda _signature: None,
    on_failure: Callable[[OperatorSignature, str], None] = lambda _signature, _reason: None,
) -> OperatorContract:
    """Run all cases on `device` and summarize their effects. Calls that the device or this torch version does not have
    are reported to `on_failure` and left out."""
    planned = plan_trials(cases, device, dtypes)
    measured = measure_operators((trial.signature for trial in planned), on_failure=on_failure, progress=progress)
    environment = get_measurement_environment(device)
    return OperatorContract(
        name=make_contract_name(device, torch.__version__),
        device=device,
        torch_version=str(torch.__version__),
        measured_on={
            "device": environment.device_name,
            "cpu_capability": environment.cpu_capability,
            "onednn": environment.onednn,
            "threads": str(environment.threads),
        },
        rows=build_contract_rows(planned, measured),
    )


def build_contract_rows(
    planned: Iterable[ContractTrial], measured: Mapping[OperatorSignature, OperatorMeasurement]
) -> tuple[ContractRow, ...]:
    """One row for each class of strides; a class whose representatives disagree has no entry."""
    groups: dict[tuple[Case, torch.dtype, int | None, StridePattern], list[ContractEntry | None]] = {}
    ranks: dict[tuple[Case, int | None], int] = {}
    for trial in planned:
        measurement = measured.get(trial.signature)
        if measurement is not None:
            key = (trial.case, trial.dtype, trial.operand, trial.pattern)
            groups.setdefault(key, []).append(_make_entry(trial, measurement.copies))
            ranks[trial.case, trial.operand] = trial.rank
    return tuple(
        ContractRow(
            target=case.target,
            case=case.name,
            operand=operand,
            rank=ranks[case, operand],
            pattern=pattern,
            dtype=dtype,
            entry=merge_entries(entries),
        )
        for (case, dtype, operand, pattern), entries in groups.items()
    )


def _make_entry(trial: ContractTrial, copies: Sequence[SeenCopy]) -> ContractEntry | None:
    """Return what the call did to the trial's operand, or to its results; None if the results' sizes are unknown."""
    seen = [copy for copy in copies if copy.operand == trial.operand]
    if not seen:
        return ContractEntry(copied=False)
    size = (
        _count_result_bytes(trial.signature) if trial.operand is None else trial.signature.tensors[trial.operand].bytes
    )
    if not size:
        return None
    by_mechanism: Counter[Mechanism] = Counter()
    for copy in seen:
        by_mechanism[copy.mechanism] += copy.bytes
    return ContractEntry(
        copied=True,
        bytes_ratio=by_mechanism.total() / (2 * size),
        count=len(seen),
        # On a tie, the copy caused by the strides comes before a copy that contiguous operands also have.
        mechanism=max(by_mechanism, key=lambda mechanism: (by_mechanism[mechanism], mechanism is Mechanism.ATEN)),
    )


def _count_result_bytes(signature: OperatorSignature) -> int | None:
    """Bytes of all results together, from torch's own shape arithmetic; None where it has none for the operator."""
    try:
        results = run_on_meta(signature)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        return None
    return sum(result.nbytes for result in pytree.tree_leaves(results) if isinstance(result, Tensor))
