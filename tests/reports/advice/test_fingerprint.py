from __future__ import annotations

import dataclasses
from pathlib import Path

from frx_graph.reports.advice.fingerprint import compute_fingerprints, identify_finding


def _moved(finding, lines):
    return dataclasses.replace(finding, site=dataclasses.replace(finding.site, line=finding.site.line + lines))


def test_moving_rewording_and_reordering_keep_the_fingerprint(advice, root):
    before = compute_fingerprints(advice.findings, root)
    changed = [
        dataclasses.replace(_moved(finding, 10), title="other words", bytes_per_step=1, count_per_step=9)
        for finding in advice.findings
    ]
    assert compute_fingerprints(changed, root) == before
    assert compute_fingerprints(changed[::-1], root) == before[::-1]
    assert len(set(before)) == len(before)


def test_project_may_be_in_any_folder(advice, root):
    elsewhere = [
        dataclasses.replace(
            finding,
            site=dataclasses.replace(finding.site, file=finding.site.file.replace("/project", "/other/checkout")),
        )
        for finding in advice.findings
    ]
    assert compute_fingerprints(elsewhere, Path("/other/checkout")) == compute_fingerprints(advice.findings, root)


def test_what_makes_another_finding_changes_it(advice, root):
    finding = advice.findings[0]
    for other in (
        dataclasses.replace(finding, rule="FRX002"),
        dataclasses.replace(finding, site=dataclasses.replace(finding.site, function="other")),
        dataclasses.replace(finding, site=dataclasses.replace(finding.site, module_path="model.other")),
        dataclasses.replace(finding, copies=finding.copies[:1]),
    ):
        assert identify_finding(other, root) != identify_finding(finding, root)
        assert compute_fingerprints([other], root) != compute_fingerprints([finding], root)


def test_twins_are_distinguished_by_line(advice, root):
    finding = advice.findings[0]
    twins = compute_fingerprints([_moved(finding, 5), finding], root)
    assert len(set(twins)) == 2
    assert compute_fingerprints([finding, _moved(finding, 50)], root) == twins[::-1]
