"""Published schemas and documents: what was written before is read, and written again byte for byte, apart from fields
that have been added since.

`FRX_GOLDEN=write pytest tests/reports/test_documents.py` writes the published schemas anew; look at the difference
before committing it. The documents in `tests/data/documents` are never written anew: readers have such files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import AliasPath
from pydantic.json_schema import GenerateJsonSchema

import frx_graph
from frx_graph.advice import Advice, AdviceSet
from frx_graph.ledger.schema import LedgerDocument
from frx_graph.reports.advice.fix_document import FixDocument
from frx_graph.reports.doctor_document import DoctorDocument, SmokeDocument
from frx_graph.reports.init_document import InitDocument
from frx_graph.reports.kernels.bench_document import BenchDocument
from frx_graph.reports.kernels.compare_document import CompareDocument
from frx_graph.reports.kernels.cuda_document import CudaDocument
from frx_graph.reports.kernels.explain_document import ExplainDocument
from frx_graph.reports.kernels.kernel_document import NcuDocument
from frx_graph.reports.kernels.ptx_document import PtxDocument
from frx_graph.reports.kernels.reconcile_document import ReconcileDocument
from frx_graph.reports.render.document import Part, get_adapter, to_json
from frx_graph.reports.runs.collect_report import CollectDocument
from frx_graph.reports.runs.fleet_document import FleetDocument
from frx_graph.reports.runs.memory_document import MemoryDocument
from frx_graph.reports.runs.run_change_document import RunChangeDocument
from frx_graph.reports.runs.run_document import RunDocument
from frx_graph.reports.runs.trace_document import TraceDocument
from frx_graph.reports.trials.trial_document import TrialDocument, TrialMatrixDocument
from frx_graph.reports.trials.tune_report import TuneDocument

SCHEMAS = Path(frx_graph.__file__).parent / "reports"
WRITTEN = Path(__file__).parents[1] / "data" / "documents"
DOCUMENTS: dict[str, type[Any]] = {
    "frx_advice_set_v1": AdviceSet,
    "frx_advice_v1": Advice,
    "frx_bench_v0": BenchDocument,
    "frx_collect_v1": CollectDocument,
    "frx_compare_v1": CompareDocument,
    "frx_cuda_v1": CudaDocument,
    "frx_doctor_v1": DoctorDocument,
    "frx_explain_v0": ExplainDocument,
    "frx_fix_v1": FixDocument,
    "frx_fleet_v1": FleetDocument,
    "frx_init_v1": InitDocument,
    "frx_ledger_v1": LedgerDocument,
    "frx_memory_v1": MemoryDocument,
    "frx_ncu_v1": NcuDocument,
    "frx_ptx_v1": PtxDocument,
    "frx_reconcile_v1": ReconcileDocument,
    "frx_run_change_v1": RunChangeDocument,
    "frx_run_v1": RunDocument,
    "frx_smoke_test_v1": SmokeDocument,
    "frx_trace_v1": TraceDocument,
    "frx_trial_matrix_v1": TrialMatrixDocument,
    "frx_trial_v1": TrialDocument,
    "frx_tune_v1": TuneDocument,
}
_OF_TRIALS = frozenset(
    {"extra_process_pairs", "weight_copies", "allocation", "check", "run_seconds", "summary", "ignored", "ignore_load"}
    | {"load", "departure", "distance"}
)
_OF_TRACES = frozenset({"idle_host_work_ms", "small_kernels_by_part", "small_kernels_by_operator", "host_operators"})
_OF_ADVICE = frozenset({"autopilot", "offer", "measurements", "kernel", "calibrated_under_load", "documented"})
_OF_RUNS = _OF_TRACES | {"uses_device", "host", "command"}
_OF_RUN_CHANGES = frozenset(
    {"regressions", "before_mean_ms", "after_mean_ms", "before_ms", "after_ms", "bytes_per_step", "ms_per_step"}
    | {"better", "improvements", "before_recorded_too_little", "after_recorded_too_little", "costs", "finding_cost"}
)
ADDED_LATER = {
    "frx_advice_v1": _OF_ADVICE,
    "frx_advice_set_v1": _OF_ADVICE,
    "frx_trial_v1": _OF_TRIALS,
    "frx_trial_matrix_v1": _OF_TRIALS,
    "frx_collect_v1": _OF_RUNS,
    "frx_fix_v1": frozenset({"decision", "kernels"}),
    "frx_cuda_v1": frozenset({"not_examined", "headers"}),
    "frx_compare_v1": frozenset({"predicted", "bound_by_rule", "assembled_for"}) | _OF_TRACES,
    "frx_memory_v1": frozenset({"unreadable"}),
    "frx_ncu_v1": frozenset({"arithmetic_roof_pct", "dram_roof_pct", "bound_by_rule"}),
    "frx_ptx_v1": frozenset({"assembled_for", "findings"}),
    "frx_ledger_v1": frozenset({"trial_summary"}),
    "frx_run_change_v1": _OF_RUN_CHANGES,
    "frx_run_v1": _OF_RUNS,
    "frx_trace_v1": _OF_TRACES,
}
NAMES = pytest.mark.parametrize("name", DOCUMENTS)


class _EveryFieldRequired(GenerateJsonSchema):
    def field_is_required(self, field: Any, total: bool) -> bool:
        return True


def published_schema(name: str, document: Any, added_later: Container[str] = ()) -> str:
    """Return the text of `{name}.schema.json`.

    A record writes every field, so its schema requires those with a default too. The fields in `added_later` are not
    required, since documents of earlier versions lack them.
    """
    generator = _EveryFieldRequired if is_dataclass(document) else GenerateJsonSchema
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:frx-graph:schema:{name}",
        **get_adapter(document).json_schema(by_alias=True, mode="serialization", schema_generator=generator),
    }
    for part in (schema, *schema.get("$defs", {}).values()):
        if "required" in part:
            part["required"] = [field for field in part["required"] if field not in added_later]
            for field in part["required"]:
                part["properties"][field].pop("default", None)
    return json.dumps(schema, indent=2, ensure_ascii=True) + "\n"


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
    read = get_adapter(DOCUMENTS[name]).validate_json(text)
    if name != "frx_ledger_v1":  # an event is written as it stands in the ledger
        written = drop_added(to_json(read), json.loads(text), ADDED_LATER.get(name, frozenset()))
        assert json.dumps(written, indent=1) + "\n" == text


def drop_added(written: Any, before: Any, added_later: Container[str]) -> Any:
    """Return the document without the fields in `added_later` that the document of `before` lacks."""
    if isinstance(written, dict) and isinstance(before, dict):
        return {
            name: drop_added(value, before.get(name), added_later)
            for name, value in written.items()
            if name in before or name not in added_later
        }
    if isinstance(written, list) and isinstance(before, list) and len(written) == len(before):
        return [drop_added(*pair, added_later) for pair in zip(written, before, strict=True)]
    return written


def _parts(part: type[Part]) -> Iterator[type[Part]]:
    for each in part.__subclasses__():
        yield from (each, *_parts(each))


def test_no_field_is_read_from_another_field_of_a_document() -> None:
    """A field that `from_record` takes from `a.b` must not be read from the field `a` of a document."""
    for part in _parts(Part):
        for name, field in part.model_fields.items():
            if isinstance(path := field.validation_alias, AliasPath) and path.path[0] in part.model_fields:
                assert len(path.path) > 1, (part, name)
                # A path ends at text or a number; it would go on into a part or an object.
                shadowed = str(part.model_fields[str(path.path[0])].annotation)
                assert not re.search("Part|dict|tuple", shadowed), (part, name)
