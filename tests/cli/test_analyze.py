from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from frx_graph.cli.analyze import analyze
from frx_graph.errors import EvidenceError, OptionError

TRACES = Path(__file__).parent.parent / "data" / "traces"
RESNET = str(TRACES / "kineto_resnet50_two_steps.pt.trace.json.gz")
MI250 = str(TRACES / "hta_mi250_minitoy_train.json.gz")


def run(*arguments: str) -> int:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(analyze)
    code: int = app(args=list(arguments), standalone_mode=False)
    return code


def test_findings_exit_with_1_and_none_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--trace", RESNET) == 1
    assert "FRX004" in capsys.readouterr().out
    assert run("--trace", MI250) == 0
    assert "No findings to show" in capsys.readouterr().out


def test_exit_zero() -> None:
    assert run("--trace", RESNET, "--exit-zero") == 0


def test_the_model_names_the_report_and_rules_are_selected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "report.json"
    assert (
        run("--trace", RESNET, "--model", "ResNet-50", "--format", "json", "-o", str(output), "--select", "FRX007") == 1
    )
    document = json.loads(output.read_text())
    assert document["target"] == "ResNet-50"
    assert [finding["rule"] for finding in document["findings"]] == ["FRX007"]
    assert run("--trace", RESNET, "--ignore", "FRX00") == 0


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no such file"):
        run("--trace", str(tmp_path / "none.json"))


def test_an_unknown_rule_is_an_error_before_the_trace_is_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--select"):
        run("--trace", str(tmp_path / "none.json"), "--select", "FRX999")
