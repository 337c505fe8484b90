from __future__ import annotations

import dataclasses

from frx_graph.advice import Totals
from frx_graph.reports.advice.outcome import Outcome, copies_sentence, headline, outcome_of


def test_four_outcomes(advice, empty, failed):
    assert outcome_of(advice) is Outcome.FINDINGS
    assert outcome_of(empty) is Outcome.CLEAN
    assert outcome_of(failed) is Outcome.NOTHING_ANALYSED
    assert outcome_of(dataclasses.replace(empty, refusals=advice.refusals)) is Outcome.PARTIAL


def test_nothing_scanned_is_nothing_analysed(empty):
    assert outcome_of(dataclasses.replace(empty, totals=Totals(0, 0, 0, None, 0))) is Outcome.NOTHING_ANALYSED


def test_headlines_cannot_be_confused(advice, empty, failed):
    assert headline(advice) == "4 findings in 36 operators, 2 quick wins among them."
    assert headline(empty) == "No findings in 36 operators."
    assert headline(dataclasses.replace(empty, refusals=advice.refusals[:1])) == (
        "No findings to show in 36 operators; 1 thing left alone, see below."
    )
    one = dataclasses.replace(empty, refusals=advice.refusals[:1], totals=Totals(1, 0, 0, None, 0))
    assert headline(one) == "No findings to show in 1 operator; 1 thing left alone, see below."
    assert headline(failed) == "Nothing was analysed: not one operator was captured. 1 reason below."
    assert "indings" not in headline(failed)


def test_copies_sentence(advice, failed):
    assert copies_sentence(advice) == "17 layout copies a step, 17.7 MB, 14.8 % of its memory traffic"
    assert "an unknown share of its" in copies_sentence(failed)
