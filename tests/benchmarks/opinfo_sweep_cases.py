"""Operators and modules of torch's own test database, sampled: rewritten, they compute the same."""

from __future__ import annotations

import json
from pathlib import Path

import opinfo_sweep
import pytest
import torch
from opinfo_sweep import OperatorSample, Swept, main, subjects
from random_program import RandomProgram
from rewrite_oracle import Outcome, Verdict, check_loaded


@pytest.mark.integration
def test_a_sample_of_the_database_is_right(tmp_path: Path) -> None:
    written = tmp_path / "swept.json"
    assert main(["--operators", "30", "--samples", "1", "--seed", "0", "--json", str(written)]) == 0
    document = json.loads(written.read_text())
    assert document["wrong"] == {}
    assert document["operators"] == 30
    assert document["samples"] >= 30


@pytest.mark.parametrize("name", ["nn.functional.interpolate.bilinear", "nn.functional.max_pool2d", "nn.GroupNorm"])
def test_operators_on_images_are_rewritten_between_convolutions(name: str) -> None:
    (samples,) = (draw() for subject, draw in subjects(1) if subject == name)
    between = [sample for sample in samples if sample.between]
    assert between
    verdict = check_loaded(RandomProgram((), (), (), (), train=True), between[0])
    assert verdict.outcome is Outcome.OK, verdict.problems
    assert verdict.applied


def test_every_operator_and_module_is_a_subject() -> None:
    names = [name for name, _ in subjects(1)]
    assert len(names) > 700
    assert {"nn.functional.conv2d", "nn.Conv3d", "cat", "nn.BatchNorm2d"} <= set(names)


def test_a_sample_keeps_the_strides_of_its_operands() -> None:
    image = torch.randn(2, 3, 4, 5).transpose(2, 3)
    sample = OperatorSample("flip", lambda: torch.flip, (image, (2,)), {}, between=True)
    (given,) = sample.inputs(2)
    assert given.stride() == image.stride()
    (result,) = sample.model()(given)
    assert result.shape == (2, 2, 5, 4)


def test_wrong_result_fails_and_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Verdict(Outcome.WRONG, ("value of output 0 in step 0",))
    monkeypatch.setattr(opinfo_sweep, "check_sample", lambda *_: wrong)
    assert main(["--only", "nn.functional.softplus", "--samples", "1"]) == 1
    assert "WRONG: nn.functional.softplus: value of output 0 in step 0" in capsys.readouterr().out


def test_samples_that_cannot_be_drawn_are_reported() -> None:
    def broken() -> list[OperatorSample]:
        raise RuntimeError("no library")

    swept = opinfo_sweep.sweep([("odd", broken)], "eager", "all")
    assert swept.baseline == {"odd": "no samples: no library"}
    assert swept.operators == 0
    assert swept == Swept(baseline=swept.baseline)
