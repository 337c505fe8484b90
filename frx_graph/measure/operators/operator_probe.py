"""Runs single operator calls by themselves, on made-up values in the real shapes and strides, and reports what they do.

An operator that cannot be run alone is reported as not measured, and never raises: it may need values that made-up ones
are not, or more memory than there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from frx_graph.errors import EvidenceError
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.measure.operators.copy_recorder import CopyRecorder
from frx_graph.measure.operators.operator_call import FailureReport, Progress, callable_of, isolated, reported
from frx_graph.measure.operators.operator_measurement import OperatorMeasurement


def measure_operators(
    signatures: Iterable[OperatorSignature],
    *,
    on_failure: FailureReport = lambda _signature, _reason: None,
    progress: Progress = lambda _signature: None,
) -> Mapping[OperatorSignature, OperatorMeasurement]:
    """The copies that each call makes inside and the implementation it takes; signatures that could not be run are
    missing from the result.

    Each distinct call is run once under the recorder, on a GPU after a first run.
    """
    distinct = list(dict.fromkeys(signatures))
    if not distinct:
        return {}
    ran: list[OperatorSignature] = []
    recorder = CopyRecorder()

    def record(signature: OperatorSignature) -> None:
        call = callable_of(signature)
        if any(tensor.device != "cpu" for tensor in signature.tensors):
            call()
        with recorder.region(signature):
            call()
        ran.append(signature)

    try:
        with isolated(distinct), recorder:
            for signature in distinct:
                progress(signature)
                with reported(signature, on_failure):
                    record(signature)
    except EvidenceError as error:
        for signature in distinct:
            on_failure(signature, str(error))
        return {}
    return {
        signature: OperatorMeasurement(
            copies=recorder.copies(signature),
            implementation=", ".join(recorder.implementations(signature)) or None,
        )
        for signature in ran
    }
