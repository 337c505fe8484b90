"""Every finding in networks of transformers, diffusers and monai says whether a fix exists, and why not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from zoo import ZOO
from zoo_entry import Group, ZooEntry

from frx_graph.advisor.advisor import advise
from frx_graph.records import Fixability

WRITTEN = Path(__file__).parents[2] / "benchmarks"
LIBRARIES = [entry for entry in ZOO if entry.group is not Group.WRITTEN or entry.name in ("unet_3d", "regnet")]


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Libraries set variables when they are imported (monai: that of cuBLAS), and decisions hold for those."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.integration
@pytest.mark.parametrize("entry", LIBRARIES, ids=lambda entry: entry.name)
def test_every_finding_has_an_offer_or_a_reason(entry: ZooEntry) -> None:
    model, args, kwargs = entry.build()
    findings = advise(model, args, kwargs, measure=False).advice.findings
    assert findings
    for one in findings:
        assert one.offer is not None
        assert (one.offer.fixability is Fixability.NOT_FIXABLE) is (not one.offer.edits)
        assert one.offer.edits or (one.offer.reason and "failed:" not in one.offer.reason), one.title
        # Nothing but the package that wrote the network would be changed.
        assert not any(Path(edit.file).is_relative_to(WRITTEN) for edit in one.offer.edits)
