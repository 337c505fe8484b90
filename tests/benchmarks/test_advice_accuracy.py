"""The comparison that the accuracy benchmark makes, and the whole of it on a small network."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from advice_accuracy import Amount, Comparison, broken_bounds, compare, main, rows, score, unlisted
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from zoo_entry import BATCH, Built, Group, ZooEntry

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.records import (
    Basis,
    Copy,
    CopyKind,
    Effort,
    Finding,
    OperandRole,
    Risk,
    Saving,
    Severity,
)

COPY = Copy(
    node="clone",
    site=CallSite("model.py", 7, "forward", "model.a"),
    operator="aten.clone",
    kind=CopyKind.EXPLICIT,
    role=OperandRole.INPUT,
    value="x",
    bytes=1000,
    count=1,
    phase=Phase.FORWARD,
    basis=Basis.PREDICTED,
    cause="asked for",
)
WEIGHT = replace(COPY, operator="aten.convolution", kind=CopyKind.REORDER, role=OperandRole.WEIGHT, bytes=50)


def finding(rule: str, *copies: Copy) -> Finding:
    return Finding(
        rule, "", Severity.LOW, COPY.site, (), 1, 1, Saving(), Effort.ONE_LINE, Risk.LOW, "", 1.0, copies=copies
    )


def comparison(observed: list[Copy], claimed: list[Copy]) -> Comparison:
    made = rows(observed, claimed)
    return Comparison("net", False, made, unlisted=0, unwatched=score(made).observed)


copies = st.builds(
    lambda line, count, size, weight: replace(
        WEIGHT if weight else COPY, site=CallSite("model.py", line, "forward"), count=count, bytes=count * size
    ),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 10**6),
    st.booleans(),
)


@given(st.lists(copies))
def test_a_prediction_that_comes_true_is_found_and_confirmed_in_full(seen: list[Copy]) -> None:
    total = score(rows(seen, seen))
    assert total.found == total.observed == total.claimed == total.confirmed
    assert total.observed == Amount(sum(c.count for c in seen), sum(c.bytes for c in seen))


@given(st.lists(copies), st.lists(copies))
def test_shares_are_never_over_one(seen: list[Copy], said: list[Copy]) -> None:
    total = score(rows(seen, said))
    assert total.found.count <= total.observed.count
    assert total.confirmed.count <= total.claimed.count


@given(st.lists(copies), st.lists(copies))
def test_the_two_directions_mirror_each_other(seen: list[Copy], said: list[Copy]) -> None:
    there, back = score(rows(seen, said)), score(rows(said, seen))
    assert (there.found, there.confirmed) == (back.confirmed, back.found)


@pytest.mark.parametrize(("size", "agrees"), [(1100, True), (1101, False), (900, True), (899, False)])
def test_bytes_may_be_off_by_a_tenth(size: int, agrees: bool) -> None:
    assert score(rows([COPY], [replace(COPY, bytes=size)])).found_share == (1.0 if agrees else 0.0)


@pytest.mark.parametrize(
    "different",
    [
        replace(COPY, count=2),
        replace(COPY, site=replace(COPY.site, line=8)),
        replace(COPY, operator="aten.reshape"),
        replace(COPY, kind=CopyKind.RESHAPE),
        replace(COPY, role=OperandRole.WEIGHT),
        replace(COPY, phase=Phase.BACKWARD),
    ],
)
def test_what_makes_a_copy_another_one(different: Copy) -> None:
    total = score(rows([COPY], [different]))
    assert (total.found.count, total.confirmed.count) == (0, 0)


@pytest.mark.parametrize(
    "same", [replace(COPY, node="other"), replace(COPY, value="3x4"), replace(COPY, basis=Basis.OBSERVED)]
)
def test_what_does_not(same: Copy) -> None:
    assert score(rows([COPY], [same])).found_share == 1.0


def test_nothing_to_find_has_no_share() -> None:
    assert score(()).found_share is None
    assert broken_bounds(comparison([], [])) == []


def test_misses_break_the_bounds_in_words() -> None:
    twenty = [replace(COPY, site=replace(COPY.site, line=n)) for n in range(20)]
    assert broken_bounds(comparison(twenty, twenty[1:])) == []
    (text,) = broken_bounds(comparison([COPY, WEIGHT], [COPY]))
    assert text == "net, inference: 50.0% of the observed copies are found"
    (text,) = broken_bounds(comparison([COPY], [COPY, WEIGHT]))
    assert text == "net, inference: 50.0% of the claimed copies are observed"


def test_a_step_that_copies_otherwise_unwatched_breaks_the_bounds() -> None:
    other = replace(comparison([COPY], [COPY]), unwatched=Amount(2, 2000))
    assert broken_bounds(other) == ["net, inference: unwatched, the step makes 2 copies"]


@pytest.mark.parametrize(
    ("findings", "count"),
    [
        ([finding("FRX002", COPY), finding("FRX007", WEIGHT)], 0),
        ([finding("FRX002", COPY)], 1),
        ([finding("FRX002", COPY, COPY), finding("FRX007", WEIGHT)], 1),
        ([finding("FRX002", COPY), finding("FRX001", WEIGHT)], 1),
        ([finding("FRX003"), finding("FRX002", COPY), finding("FRX007", WEIGHT)], 0),
    ],
)
def test_every_predicted_copy_is_in_one_finding_of_its_rule(findings: list[Finding], count: int) -> None:
    assert unlisted([COPY, WEIGHT], findings) == count


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3)
        self.linear = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).flatten(2).transpose(1, 2)
        return self.linear(y.contiguous())


@pytest.mark.integration
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
@pytest.mark.parametrize("train", [False, True])
def test_the_advice_on_a_small_network_is_true(
    train: bool, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRX_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "measured"))

    def small(train: bool = False, batch: int = BATCH) -> Built:
        return Small().train(train), (torch.randn(batch, 8, 10, 10),), {}

    entry = ZooEntry("small", small, Group.WRITTEN)
    result = compare(entry, train)
    assert broken_bounds(result) == []
    total = score(result.rows)
    assert total.found_share == total.confirmed_share == 1.0
    assert {row.place.rule for row in result.rows} == {"FRX001", "FRX002", "FRX007"}


def test_an_unknown_network_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["resnet19"])
    assert exit_info.value.code == 2
    assert "no network 'resnet19'" in capsys.readouterr().err
