from __future__ import annotations

import dataclasses
import unicodedata

import pytest
from rich.cells import cell_len

from frx_graph.reports.advice.text import render_text


def _text(advice, root, top=10, width=80, color=False):
    return render_text(advice, top=top, width=width, color=color, root=root)


@pytest.mark.parametrize("name", ["advice", "observed", "empty", "failed", "hostile"])
def test_golden_at_80_columns(name, request, root, golden):
    text = _text(request.getfixturevalue(name), root)
    golden(f"text_{name}.txt", text)
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert text == _text(request.getfixturevalue(name), root)


@pytest.mark.parametrize("width", [60, 100, 140])
def test_fits_the_width(observed, hostile, root, width):
    for advice in (observed, hostile):
        assert max(cell_len(line) for line in _text(advice, root, width=width).splitlines()) <= width


def test_hostile_names_reach_no_terminal(hostile, root):
    text = _text(hostile, root)
    assert not {unicodedata.category(c) for c in text} & {"Cf", "Cs"}
    assert {c for c in text if unicodedata.category(c) == "Cc"} == {"\n"}
    assert "[bold]" in text
    assert not any(line.startswith("::error::") for line in _text(hostile, root, width=400).splitlines())


def test_colour_only_when_asked(advice, root, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in _text(advice, root)
    assert "\x1b[1;31mFRX001" in _text(advice, root, color=True)


def test_top_reports_how_many_findings_it_leaves_out(advice, root):
    text = _text(advice, root, top=2)
    assert "FRX007" not in text
    assert "2 more places: --top 4 shows all." in text
    unknown_only = dataclasses.replace(advice, findings=advice.findings[2:])
    assert "1 more place: --top 2 shows all." in _text(unknown_only, root, top=1)


def test_observed_evidence_comes_first(advice, root):
    text = _text(advice, root, top=1)
    assert text.index("2 reorder lines") < text.index("is contiguous")
    assert "3.1 GFLOP" not in text


def test_observing_no_copies_is_reported(advice, root):
    nothing = dataclasses.replace(advice, copies=(), observed=())
    assert "No layout copy was predicted or observed." in _text(nothing, root)
    assert "observed." not in _text(dataclasses.replace(advice, copies=()), root)
