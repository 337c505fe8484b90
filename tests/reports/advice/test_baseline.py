from __future__ import annotations

import dataclasses
import json

import pytest

from frx_graph.errors import FrxError
from frx_graph.reports.advice.baseline import build_baseline, filter_new, read_baseline, write_baseline


def _with(advice, *findings):
    return dataclasses.replace(advice, findings=findings)


def _moved(finding, lines):
    return dataclasses.replace(
        finding, title="reworded", site=dataclasses.replace(finding.site, line=finding.site.line + lines)
    )


def test_round_trip(advice, hostile, root, tmp_path, golden):
    file = tmp_path / "baseline.json"
    for each in (hostile, advice):
        write_baseline(file, build_baseline(each, root))
        assert read_baseline(file) == build_baseline(each, root)
        assert filter_new(each, read_baseline(file), root).findings == ()
    golden("baseline.json", file.read_text())
    assert '"line"' not in file.read_text()


def test_moved_and_reworded_findings_are_known(advice, root):
    known = build_baseline(advice, root)
    moved = _with(advice, *(_moved(finding, 7) for finding in advice.findings))
    less = filter_new(moved, known, root)
    assert less.findings == ()
    assert less.refusals[-1].subject == "4 findings"
    assert "baseline" in less.refusals[-1].reason


def test_another_finding_is_new(advice, root):
    known = build_baseline(_with(advice, *advice.findings[:2]), root)
    assert filter_new(advice, known, root).findings == advice.findings[2:]


def test_one_more_of_the_same_is_new(advice, root):
    finding = advice.findings[0]
    known = build_baseline(_with(advice, finding), root)
    lower = _moved(finding, 9)
    assert filter_new(_with(advice, lower, finding), known, root).findings == (lower,)
    both = build_baseline(_with(advice, lower, finding), root)
    assert filter_new(_with(advice, lower, finding), both, root).findings == ()
    assert filter_new(_with(advice, lower, lower), known, root).findings == (lower,)


def test_empty_baseline_hides_nothing(advice, root):
    assert filter_new(advice, {}, root) is advice


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'{"schema": "frx_baseline_v2", "findings": []}',
        b'{"schema": "frx_baseline_v1", "findings": [{"rule": "FRX001"}]}',
        b'{"schema": "frx_baseline_v1", "findings": [], "x": 1}',
        b"[" * 100_000,
    ],
)
def test_malformed_file(tmp_path, text):
    file = tmp_path / "b.json"
    file.write_bytes(text)
    with pytest.raises(FrxError, match=r"b\.json is not a baseline: .* at ") as error:
        read_baseline(file)
    assert "--write-baseline" in error.value.hint
    assert "\n" not in str(error.value)


def test_count_must_be_positive(tmp_path, advice, root):
    file = tmp_path / "b.json"
    write_baseline(file, build_baseline(advice, root))
    document = json.loads(file.read_text())
    document["findings"][0]["count"] = 0
    file.write_text(json.dumps(document))
    with pytest.raises(FrxError, match=r"findings\.0\.count"):
        read_baseline(file)


def test_missing_and_unwritable_file(tmp_path):
    with pytest.raises(FrxError, match="cannot be read: No such file"):
        read_baseline(tmp_path / "none.json")
    with pytest.raises(FrxError, match="cannot be written"):
        write_baseline(tmp_path, {})
