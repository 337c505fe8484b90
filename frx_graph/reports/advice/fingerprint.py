"""Identify findings across runs, even if lines move or titles are reworded."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from frx_graph.records import Finding
from frx_graph.reports.render.source_path import shorten_path


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """The stable part of a finding: no line, title, count or bytes.

    `key` distinguishes the findings of one function and module by the operators that copy, and by the kind and role of
    the copied operand. Only their order distinguishes findings that share an identity.
    """

    rule: str
    file: str
    function: str
    module_path: str
    key: str


def identify_finding(finding: Finding, root: Path) -> Identity:
    """Return a finding's identity, its file relative to `root` or to the installed packages."""
    return Identity(
        rule=finding.rule,
        file=shorten_path(finding.site.file, root),
        function=finding.site.function,
        module_path=finding.site.module_path,
        key=",".join(sorted({f"{copy.operator}:{copy.kind}:{copy.role}" for copy in finding.copies})),
    )


def compute_fingerprints(findings: Sequence[Finding], root: Path) -> tuple[str, ...]:
    """Return one hexadecimal fingerprint per finding. Findings of the same identity are numbered by line, so theirs
    differ."""
    members: dict[Identity, list[int]] = defaultdict(list)
    for index, finding in enumerate(findings):
        members[identify_finding(finding, root)].append(index)
    result = [""] * len(findings)
    for identity, indices in members.items():
        for ordinal, index in enumerate(sorted(indices, key=lambda i: (findings[i].site.line, i))):
            text = "\0".join((*astuple(identity), str(ordinal)))
            result[index] = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
    return tuple(result)
