"""The smoke test passes here, and fails where something that it goes through does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from frx_graph.errors import EvidenceError
from frx_graph.runs import smoke_test


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert not list(tmp_path.iterdir())


def problems() -> dict[str, str | None]:
    return {check.name: check.problem for check in smoke_test.run_smoke_checks()}


def test_all_passes() -> None:
    assert set(problems().values()) == {None}


def test_a_run_that_does_not_wait_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke_test, "WAITING", 0.1)
    found = problems()
    assert found["primary_bottleneck == input_bound"] is not None
    assert "input_bound" not in (found["primary_bottleneck == input_bound"] or "")
    assert found["waiting share as written"] is None


def test_what_cannot_be_analysed_fails_and_what_is_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise EvidenceError("nothing can be read")

    monkeypatch.setattr(smoke_test, "analyze_bundle", broken)
    found = list(problems().values())
    assert found[:5] == [None] * 5
    assert found[5:] == ["EvidenceError: nothing can be read", *["not reached"] * 4]
