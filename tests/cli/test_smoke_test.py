"""`frx smoke-test` as it is typed."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import pytest

from frx_graph.cli import smoke_test
from frx_graph.cli.main import run
from frx_graph.runs.smoke_test import SmokeCheck

CHECKS = (SmokeCheck("first"), SmokeCheck("second", "\x1b[31mwrong\nhere"))


@pytest.mark.parametrize(("checks", "code"), [(CHECKS[:1], 0), (CHECKS, 1)])
def test_each_check_has_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checks: tuple[SmokeCheck, ...], code: int
) -> None:
    monkeypatch.setattr(smoke_test, "run_smoke_test", lambda: checks)
    assert run(["smoke-test"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[PASS] first"
    if code:
        assert lines[1:] == ["[FAIL] second: [31mwrong here", "1 of the smoke test's checks failed."]
    else:
        assert lines[1:] == ["All smoke-test checks passed."]
    assert run(["smoke-test", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    published = resources.files("frx_graph.reports").joinpath("frx_smoke_test_v1.schema.json").read_text("utf-8")
    jsonschema.Draft202012Validator(json.loads(published)).validate(document)
    assert document["mode"] == "smoke_test"
    assert [check["passed"] for check in document["result"]["checks"]] == [check.problem is None for check in checks]
