"""Published schemas and documents: what was written before is read, and written again byte for byte.

`FRX_GOLDEN=write pytest tests/reports/test_documents.py` writes the published schemas anew; look at the difference
before committing it. The documents in `tests/data/documents` are never written anew: readers have such files.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import frx_graph
from frx_graph.advice import Advice
from frx_graph.ledger.schema import LedgerDocument
from frx_graph.reports.doctor_document import DoctorDocument, SmokeDocument
from frx_graph.reports.init_document import InitDocument
from frx_graph.reports.kernels.bench_document import BenchDocument
from frx_graph.reports.kernels.compare_parts import CompareDocument
from frx_graph.reports.kernels.cuda_document import CudaDocument
from frx_graph.reports.kernels.explain_document import ExplainDocument
from frx_graph.reports.kernels.kernel_document import NcuDocument
from frx_graph.reports.kernels.ptx_document import PtxDocument
from frx_graph.reports.kernels.reconcile_document import ReconcileDocument
from frx_graph.reports.render.document import adapter, published_schema, to_json
from frx_graph.reports.runs.collect_report import CollectDocument
from frx_graph.reports.runs.fleet_document import FleetDocument
from frx_graph.reports.runs.run_parts import RunDocument
from frx_graph.reports.runs.trace_parts import TraceDocument
from frx_graph.reports.trials.trial_document import TrialDocument, TrialMatrixDocument
from frx_graph.reports.trials.tune_document import TuneDocument

SCHEMAS = Path(frx_graph.__file__).parent / "reports"
WRITTEN = Path(__file__).parents[1] / "data" / "documents"
DOCUMENTS: dict[str, type[Any]] = {
    "frx_advice_v1": Advice,
    "frx_bench_v0": BenchDocument,
    "frx_collect_v1": CollectDocument,
    "frx_compare_v1": CompareDocument,
    "frx_cuda_v1": CudaDocument,
    "frx_doctor_v1": DoctorDocument,
    "frx_explain_v0": ExplainDocument,
    "frx_fleet_v1": FleetDocument,
    "frx_init_v1": InitDocument,
    "frx_ledger_v1": LedgerDocument,
    "frx_ncu_v1": NcuDocument,
    "frx_ptx_v1": PtxDocument,
    "frx_reconcile_v1": ReconcileDocument,
    "frx_run_v1": RunDocument,
    "frx_smoke_test_v1": SmokeDocument,
    "frx_trace_v1": TraceDocument,
    "frx_trial_matrix_v1": TrialMatrixDocument,
    "frx_trial_v1": TrialDocument,
    "frx_tune_v1": TuneDocument,
}
ADDED_LATER = {"frx_advice_v1": frozenset({"measurements"})}
NAMES = pytest.mark.parametrize("name", DOCUMENTS)


def test_every_schema_has_a_type_and_a_document() -> None:
    assert {path.name.removesuffix(".schema.json") for path in SCHEMAS.glob("*.schema.json")} == set(DOCUMENTS)
    assert {path.stem for path in WRITTEN.iterdir()} == set(DOCUMENTS)


@NAMES
def test_the_published_schema_is_that_of_the_type(name: str) -> None:
    published = SCHEMAS / f"{name}.schema.json"
    schema = published_schema(name, DOCUMENTS[name], ADDED_LATER.get(name, ()))
    if os.environ.get("FRX_GOLDEN") == "write":
        published.write_text(schema, encoding="utf-8")
    assert published.read_text(encoding="utf-8") == schema
    jsonschema.Draft202012Validator.check_schema(json.loads(schema))


@NAMES
def test_a_document_of_before_is_read_and_written_as_it_was(name: str) -> None:
    text = (WRITTEN / f"{name}.json").read_text(encoding="utf-8")
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    read = adapter(DOCUMENTS[name]).validate_json(text)
    if name != "frx_ledger_v1":  # an event is written as it stands in the ledger
        assert json.dumps(to_json(read), indent=1) + "\n" == text
