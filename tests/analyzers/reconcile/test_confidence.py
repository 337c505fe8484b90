"""How sure layers together are: every rule of the table, and what must hold of all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.analyzers.reconcile.confidence import Confidence, Standing, judge
from frx_graph.analyzers.reconcile.signal import Grade, Layer, Signal

HINT, CERTAIN, COUNTED, MEASURED = Grade.HINT, Grade.CERTAIN, Grade.COUNTED, Grade.MEASURED
LOW, MEDIUM, HIGH, CONFIRMED = Confidence
SOURCE, PTX, NCU, PROFILER = Layer


def signal(layer: Layer, grade: Grade, *, supports: bool = True, about: str = "", alone: bool = True) -> Signal:
    return Signal(layer, "label", supports, grade, "seen", about, alone)


@pytest.mark.parametrize(
    ("signals", "confidence"),
    [
        ([(SOURCE, HINT)], LOW),
        ([(PTX, HINT)], LOW),
        ([(SOURCE, CERTAIN)], MEDIUM),
        ([(PTX, COUNTED)], HIGH),
        ([(NCU, MEASURED)], HIGH),
        ([(SOURCE, HINT), (PTX, HINT)], MEDIUM),
        ([(SOURCE, CERTAIN), (PTX, HINT)], HIGH),
        ([(SOURCE, CERTAIN), (PTX, CERTAIN)], HIGH),
        ([(SOURCE, CERTAIN), (PTX, COUNTED)], HIGH),
        ([(SOURCE, CERTAIN), (PTX, CERTAIN), (PROFILER, CERTAIN)], HIGH),
        ([(SOURCE, HINT), (NCU, MEASURED)], HIGH),
        ([(SOURCE, CERTAIN), (NCU, MEASURED)], CONFIRMED),
        ([(PTX, COUNTED), (NCU, MEASURED)], CONFIRMED),
        ([(PROFILER, CERTAIN), (NCU, MEASURED)], CONFIRMED),
        ([(SOURCE, CERTAIN), (SOURCE, CERTAIN)], MEDIUM),
        ([(NCU, MEASURED), (NCU, MEASURED)], HIGH),
    ],
)
def test_the_table(signals: list[tuple[Layer, Grade]], confidence: Confidence) -> None:
    found = judge([signal(*one) for one in signals])
    assert found is not None
    assert found.confidence is confidence


@pytest.mark.parametrize(
    ("against", "standing", "confidence"),
    [
        ((PTX, HINT), Standing.HOLDS, LOW),
        ((PTX, CERTAIN), Standing.DISPUTED, None),
        ((NCU, MEASURED), Standing.REFUTED, None),
    ],
)
def test_contradicting_signals_are_weighed_too(
    against: tuple[Layer, Grade], standing: Standing, confidence: Confidence | None
) -> None:
    found = judge([signal(SOURCE, CERTAIN), signal(*against, supports=False)])
    assert found is not None
    assert (found.standing, found.confidence) == (standing, confidence)


def test_symptom_needs_a_signal_that_explains_it() -> None:
    symptom = signal(NCU, MEASURED, alone=False)
    alone, together = judge([symptom]), judge([symptom, signal(SOURCE, CERTAIN)])
    assert alone is not None
    assert together is not None
    assert (alone.standing, together.confidence) == (Standing.UNSUPPORTED, CONFIRMED)
    hinted = judge([symptom, signal(SOURCE, HINT)])
    assert hinted is not None
    assert hinted.confidence is MEDIUM


def test_load_counters_do_not_apply_to_stores() -> None:
    stores = signal(SOURCE, CERTAIN, about="stores")
    counted = judge([stores, signal(NCU, MEASURED, about="loads")])
    whole = judge([stores, signal(NCU, MEASURED, about="loads", supports=False)])
    assert counted is not None
    assert whole is not None
    assert (counted.confidence, whole.confidence) == (HIGH, MEDIUM)
    refuted = judge([stores, signal(NCU, MEASURED, about="stores", supports=False)])
    assert refuted is not None
    assert refuted.standing is Standing.REFUTED


def test_no_supporting_signal_gives_no_judgement() -> None:
    assert judge([]) is None
    assert judge([signal(NCU, MEASURED, supports=False)]) is None


ABOUT = st.sampled_from(["", "loads", "stores"])
SIGNALS = st.builds(
    signal, st.sampled_from(Layer), st.sampled_from(Grade), supports=st.booleans(), about=ABOUT, alone=st.booleans()
)


@given(st.lists(SIGNALS, max_size=6), SIGNALS)
def test_a_layer_that_agrees_never_takes_from_it(known: list[Signal], more: Signal) -> None:
    agreeing = signal(more.layer, more.grade, about=more.about, alone=more.alone)
    before, after = judge(known), judge([*known, agreeing])
    assert after is not None
    if before is not None:
        assert (after.confidence or 0) >= (before.confidence or 0)


@given(st.lists(SIGNALS, max_size=6), SIGNALS)
def test_one_that_contradicts_never_adds_to_it(known: list[Signal], more: Signal) -> None:
    against = signal(more.layer, more.grade, about=more.about, supports=False)
    before, after = judge(known), judge([*known, against])
    assert (before is None) == (after is None)
    if before is not None and after is not None:
        assert (after.confidence or 0) <= (before.confidence or 0)


@given(st.lists(SIGNALS, max_size=6), st.randoms(use_true_random=False))
def test_order_does_not_matter(known: list[Signal], random) -> None:
    other = list(known)
    random.shuffle(other)
    assert judge(known) == judge(other)


@given(st.lists(SIGNALS, max_size=6))
def test_confirmed_takes_a_measurement_and_another_layer(known: list[Signal]) -> None:
    found = judge(known)
    if found is not None and found.confidence is CONFIRMED:
        assert any(one.grade is MEASURED for one in found.agreeing)
        assert len({one.layer for one in found.agreeing if one.grade >= CERTAIN}) > 1
