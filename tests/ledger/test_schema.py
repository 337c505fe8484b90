from __future__ import annotations

import dataclasses
import json
from importlib import resources

import jsonschema
import pytest

from frx_graph.ledger import schema
from frx_graph.ledger.active_plans import Step, fold_steps
from frx_graph.ledger.canonical_json import dump_canonical
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Decision, RecordedEvent
from frx_graph.ledger.event_document import CandidateModel, EventModel, export_event
from frx_graph.records import Candidate

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_ledger_v1.schema.json").read_text(encoding="utf-8")


def test_every_field_of_a_record_is_published():
    assert set(EventModel.model_fields) - {"schema_name"} == {
        field.name for record in (Decision, RecordedEvent) for field in dataclasses.fields(record)
    } - {"decision", "document"}
    assert set(CandidateModel.model_fields) == {field.name for field in dataclasses.fields(Candidate)}


def test_documents_and_exported_lines_match_the_schema(location, promoted):
    events = open_ledger(location).append(promoted())
    standings = {"b" * 16: fold_steps(Step.from_event(event) for event in events)}
    published = json.loads(PUBLISHED)
    document = schema.build_ledger_document("/ledger", 3, events, {}, standings)
    jsonschema.Draft202012Validator(published).validate(document)
    assert schema.LedgerDocument.model_validate(document).plans[0].promoted == 3
    jsonschema.Draft202012Validator(published).validate(schema.build_ledger_document("/ledger", 0, (), {}))
    one = jsonschema.Draft202012Validator({**published["$defs"]["ListedEventModel"], "$defs": published["$defs"]})
    for event in events:
        one.validate(json.loads(dump_canonical(export_event(event))))
    with pytest.raises(jsonschema.ValidationError):
        one.validate({**export_event(events[0]), "hash": "short"})
