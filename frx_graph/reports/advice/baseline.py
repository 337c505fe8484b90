"""A file of known findings, so that CI fails only on new ones.

The file is sorted JSON, meant to be committed. It has one entry per finding identity (`fingerprint.Identity`), with the
number of findings that share it, and no line numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frx_graph.advice import Advice
from frx_graph.errors import OptionError
from frx_graph.reports.advice.fingerprint import Identity, identify_finding
from frx_graph.reports.advice.selection import hide_findings
from frx_graph.support.atomic_file import write_atomically
from frx_graph.support.plain_text import clean_line, escape_surrogates

Baseline = Mapping[Identity, int]
"""Number of known findings of each identity."""


class _BaselineEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rule: str
    file: str
    function: str
    module_path: str
    key: str
    count: int = Field(ge=1)


class _BaselineFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_name: Literal["frx_baseline_v1"] = Field(alias="schema")
    findings: list[_BaselineEntry]


def build_baseline(advice: Advice, root: Path) -> Baseline:
    """Count the findings of `advice` by identity; files are relative to `root`."""
    return Counter(_to_encodable(identify_finding(finding, root)) for finding in advice.findings)


def filter_new(advice: Advice, baseline: Baseline, root: Path) -> Advice:
    """Return the advice without the findings in `baseline`. If findings share an identity, those on the lowest lines
    are known, up to its count."""
    left = Counter(baseline)
    known: set[int] = set()
    by_line = sorted(range(len(advice.findings)), key=lambda i: (advice.findings[i].site.line, i))
    for index in by_line:
        identity = _to_encodable(identify_finding(advice.findings[index], root))
        if left[identity] > 0:
            left[identity] -= 1
            known.add(index)
    return hide_findings(advice, known, "known to the baseline")


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write the file. Raises OptionError if that fails."""
    entries = [{**asdict(identity), "count": count} for identity, count in sorted(baseline.items())]
    text = json.dumps({"schema": "frx_baseline_v1", "findings": entries}, indent=2, ensure_ascii=True) + "\n"
    try:
        write_atomically(path, text)
    except OSError as error:
        raise OptionError(
            f"the baseline cannot be written to {clean_line(str(path))}: {error.strerror}", "choose another path"
        ) from error


def read_baseline(path: Path) -> Baseline:
    """Return the known findings. Raises OptionError for a missing, unreadable or malformed file."""
    name = clean_line(str(path))
    again = "write one with `frx advise TARGET --write-baseline FILE`"
    try:
        document = _BaselineFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise OptionError(f"the baseline {name} cannot be read: {error.strerror}", again) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top level"
        raise OptionError(
            f"{name} is not a baseline: {clean_line(first['msg'])} at {clean_line(where)}", again
        ) from error
    known: Counter[Identity] = Counter()
    for entry in document.findings:
        known[Identity(entry.rule, entry.file, entry.function, entry.module_path, entry.key)] += entry.count
    return known


def _to_encodable(identity: Identity) -> Identity:
    """Return the identity in the form of the file."""
    return Identity(*(escape_surrogates(part) for part in asdict(identity).values()))
