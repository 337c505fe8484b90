import json
from importlib import resources

import jsonschema
import pytest
import typer
from typer.testing import CliRunner

from frx_graph.cli import doctor as command
from frx_graph.doctor import torch_build
from frx_graph.measure.machine import device_profile_cache
from frx_graph.support.check import Check, Status

app = typer.Typer()
app.command()(command.doctor)
FINE = Check("torch", "2.15.0")
WARNED = Check("cache", "/root [not written]", Status.WARNING, "name another one")
FAILED = Check("copy recorder", "sees nothing", Status.ERROR, "use another build")


@pytest.mark.parametrize(
    ("checks", "code"), [((FINE,), 0), ((FINE, WARNED), 1), ((FAILED, WARNED), 2)], ids=["ok", "warning", "error"]
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_exit_codes(checks: tuple[Check, ...], code: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "check_installation", lambda: checks)
    assert CliRunner().invoke(app, ["--format", form]).exit_code == code


def test_text_shows_values_as_they_are_and_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "check_installation", lambda: (FINE, WARNED))
    output = CliRunner().invoke(app, []).stdout
    assert "[not written]" in output
    assert "name another one" in output
    assert "\x1b" not in output


def test_findings_cannot_inject_escape_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        command, "check_installation", lambda: (Check("cache", "/a\x1b[31m", Status.WARNING, "\x1b[1m"),)
    )
    assert "\x1b" not in CliRunner().invoke(app, []).stdout


def test_what_is_absent_and_not_needed_is_not_called_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Check("ncu", "not found (only needed for frx profile)", absent=True)
    monkeypatch.setattr(command, "check_installation", lambda: (FINE, absent))
    first, second = CliRunner().invoke(app, []).stdout.splitlines()
    assert (first.split()[0], second.split()[0]) == ("ok", "--")
    document = json.loads(CliRunner().invoke(app, ["--format", "json"]).stdout)
    assert document["checks"][1]["status"] == "ok"


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "check_installation", lambda: (FINE, WARNED))
    document = json.loads(CliRunner().invoke(app, ["--format", "json"]).stdout)
    published = resources.files("frx_graph.reports").joinpath("frx_doctor_v1.schema.json").read_text("utf-8")
    jsonschema.Draft202012Validator(json.loads(published)).validate(document)
    assert document["schema"] == "frx_doctor_v1"
    assert document["status"] == "warning"
    assert document["checks"][1] == {
        "name": "cache",
        "value": "/root [not written]",
        "status": "warning",
        "hint": "name another one",
    }


def test_the_devices_are_measured_again_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    monkeypatch.setattr(command, "check_installation", lambda: (FINE,))
    monkeypatch.setattr(torch_build, "list_usable_devices", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(device_profile_cache, "measure_again", measured.append)
    assert CliRunner().invoke(app, []).exit_code == 0
    assert measured == []
    assert CliRunner().invoke(app, ["--measure"]).exit_code == 0
    assert measured == ["cpu", "cuda"]
