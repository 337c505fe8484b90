from __future__ import annotations

import dataclasses

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.records import Basis, Copy, CopyKind, OperandRole
from frx_graph.reports.advice.comparison import Agreement, compare, count_agreements


def _copy(line, count, size, module="model.a"):
    site = CallSite("net.py", line, "forward", module)
    return Copy(
        "n", site, "op", CopyKind.EXPLICIT, OperandRole.INPUT, "v", size, count, Phase.FORWARD, Basis.PREDICTED, ""
    )


def test_each_call_site_is_one_row_largest_first():
    predicted = [_copy(1, 2, 100), _copy(1, 2, 100, "model.b"), _copy(2, 1, 500), _copy(3, 10, 1000)]
    observed = [_copy(1, 4, 190), _copy(2, 1, 300), _copy(4, 1, 7)]
    rows = compare(predicted, observed)
    assert [(row.site.line, row.agreement) for row in rows] == [
        (3, Agreement.NOT_OBSERVED),
        (2, Agreement.DIFFERS),
        (1, Agreement.AGREES),
        (4, Agreement.NOT_PREDICTED),
    ]
    assert rows[2].site.module_path == "model.*"
    assert (rows[2].predicted_count, rows[2].predicted_bytes, rows[2].observed_bytes) == (4, 200, 190)
    assert rows[3].predicted_bytes is None
    assert count_agreements(rows) == dict.fromkeys(Agreement, 1)


def test_tolerance_is_a_tenth_of_what_was_observed():
    assert compare([_copy(1, 1, 110)], [_copy(1, 1, 100)])[0].agreement is Agreement.AGREES
    assert compare([_copy(1, 1, 111)], [_copy(1, 1, 100)])[0].agreement is Agreement.DIFFERS
    assert compare([_copy(1, 12, 100)], [_copy(1, 10, 100)])[0].agreement is Agreement.DIFFERS


def test_order_of_copies_changes_nothing(observed):
    rows = compare(observed.copies, observed.observed)
    assert rows == compare(reversed(observed.copies), reversed(observed.observed))
    assert compare((), ()) == ()
    assert dataclasses.replace(rows[0]) in rows
