from __future__ import annotations

import dataclasses
import json

import jsonschema
import pytest

from frx_graph.advice import Advice
from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.reports.advice.sarif import render_sarif


def _object(required, **properties):
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def _list(items, minimum=0):
    return {"type": "array", "items": items, "minItems": minimum}


TEXT = {"type": "string", "minLength": 1}
URI = {"type": "string", "pattern": r"^[A-Za-z0-9/._~:%-]+$"}
MESSAGE = _object(["text"], text=TEXT)
MULTIFORMAT = _object(["text"], text=TEXT, markdown=TEXT)
LEVEL = {"enum": ["none", "note", "warning", "error"]}
LOCATION = _object(
    ["physicalLocation"],
    physicalLocation=_object(
        ["artifactLocation"],
        artifactLocation=_object(["uri"], uri=URI, uriBaseId={"const": "%SRCROOT%"}),
        region=_object(["startLine"], startLine={"type": "integer", "minimum": 1}),
    ),
    logicalLocations=_list(_object(["fullyQualifiedName"], fullyQualifiedName=TEXT, kind=TEXT), 1),
)
RULE = _object(
    ["id"],
    id=TEXT,
    name=TEXT,
    shortDescription=MULTIFORMAT,
    fullDescription=MULTIFORMAT,
    help=MULTIFORMAT,
    helpUri={"type": "string", "pattern": "^https://"},
    defaultConfiguration=_object([], level=LEVEL),
    properties={"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}},
)
RESULT = _object(
    ["ruleId", "message", "locations", "partialFingerprints"],
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": 0},
    kind={"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]},
    level=LEVEL,
    rank={"type": "number", "minimum": -1, "maximum": 100},
    message=MESSAGE,
    locations=_list(LOCATION, 1),
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    occurrenceCount={"type": "integer", "minimum": 1},
    properties={"type": "object"},
)
NOTIFICATION = _object(["message"], level=LEVEL, message=MESSAGE, locations=_list(LOCATION))
RUN = _object(
    ["tool", "results"],
    tool=_object(["driver"], driver=_object(["name"], name=TEXT, semanticVersion=TEXT, rules=_list(RULE))),
    invocations=_list(
        _object(
            ["executionSuccessful"],
            executionSuccessful={"type": "boolean"},
            toolExecutionNotifications=_list(NOTIFICATION, 1),
        )
    ),
    originalUriBaseIds={"type": "object", "additionalProperties": _object([], description=MESSAGE)},
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results=_list(RESULT),
    properties={"type": "object"},
)
SARIF_SUBSET = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(["version", "runs"], **{"$schema": URI, "version": {"const": "2.1.0"}, "runs": _list(RUN, 1)}),
}
"""The part of SARIF 2.1.0 that the report uses, and nothing beside it."""


@pytest.fixture
def run(root, cards):
    def render(advice: Advice):
        document = json.loads(render_sarif(advice, root=root, cards=cards))
        jsonschema.Draft202012Validator(SARIF_SUBSET).validate(document)
        return document["runs"][0]

    return render


@pytest.mark.parametrize("name", ["observed", "failed", "hostile"])
def test_golden(name, request, root, cards, golden, run):
    advice = request.getfixturevalue(name)
    run(advice)
    golden(f"{name}.sarif", render_sarif(advice, root=root, cards=cards))


def test_results_point_at_their_rules(advice, run):
    found = run(advice)
    rules = found["tool"]["driver"]["rules"]
    assert [rules[result["ruleIndex"]]["id"] for result in found["results"]] == [f.rule for f in advice.findings]
    assert rules[-1] == {"id": "FRX010"}
    assert rules[0]["name"] == "hidden_copy"


def test_paths_are_relative_to_the_checkout_or_absolute(advice, run):
    artifacts = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in run(advice)["results"]]
    assert artifacts[0] == {"uri": "models/resnet.py", "uriBaseId": "%SRCROOT%"}
    assert artifacts[1] == {"uri": "file:///venv/lib/python3.11/site-packages/vision/attention.py"}


@pytest.mark.parametrize(
    ("target", "uri"),
    [
        ("models/resnet.py:make", "models/resnet.py"),
        ("resnet.py:make", "resnet.py"),
        ("models.resnet:make", "models/resnet.py"),
        ("runs/profile.json", "runs/profile.json"),
        ("trace.json.gz", "trace.json.gz"),
        ("ResNet", "ResNet.py"),
    ],
)
def test_target_replaces_an_unknown_call_site(advice, run, target, uri):
    finding = dataclasses.replace(advice.findings[0], site=UNKNOWN_SITE)
    location = run(dataclasses.replace(advice, findings=(finding,), target=target))["results"][0]["locations"][0]
    assert location == {"physicalLocation": {"artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"}}}


def test_fingerprints_survive_shifted_lines(advice, run):
    def marks(found):
        return [result["partialFingerprints"] for result in found["results"]]

    shifted = tuple(
        dataclasses.replace(f, site=dataclasses.replace(f.site, line=f.site.line + 3)) for f in advice.findings
    )
    assert marks(run(dataclasses.replace(advice, findings=shifted))) == marks(run(advice))


def test_rank_is_the_predicted_saving(advice, run):
    assert [result["rank"] for result in run(advice)["results"]] == [8.04, 3.0, 0.04, -1.0]


def test_nothing_analysed_is_a_failed_run(advice, empty, failed, run):
    (invocation,) = run(failed)["invocations"]
    assert invocation["executionSuccessful"] is False
    assert [note["level"] for note in invocation["toolExecutionNotifications"]] == ["error", "error"]
    assert run(empty)["invocations"] == [{"executionSuccessful": True}]
    assert [n["level"] for n in run(advice)["invocations"][0]["toolExecutionNotifications"]] == ["note", "note"]
