"""Who compares the other way around hears the same of the other side; who compares a thing with itself, that it is
equal."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from compared_layers import MIX, function, launch, ncu, ptx, source
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.analyzers.comparison.comparison import Comparison, compare_layers
from frx_graph.analyzers.comparison.matching import Winner
from frx_graph.analyzers.layers import Layers
from frx_graph.analyzers.reconcile.reconciliation import Reconciliation
from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.evidence.ptx.ptxas import Assembled

_SOURCES = [
    source(text)
    for text in (
        "__global__ void f(float* a, int n) { a[n * threadIdx.x] = 1; }",
        "__global__ void f(float* a, int n) { a[threadIdx.x] = 1; }\nvoid run(float* a) { f<<<9, 100>>>(a, 1); }",
        "template <class T> __global__ void f(T* a) { __shared__ T t[32][32]; t[threadIdx.x][0] = a[0]; }\n"
        "__global__ void g(float* a) { atomicAdd(a, 1.0f); }",
        "__global__ void other(double* a) { a[threadIdx.x] *= 2; }",
    )
]
_MIRRORED = {Winner.A: Winner.B, Winner.B: Winner.A}
_METRICS = ("dram_throughput", "l2_hit_rate", "issue_slots_busy", "achieved_occupancy", "theoretical_occupancy")
_COUNTS = ("registers_per_thread", "sectors_per_load", "dram_bytes", "sm_frequency")


@st.composite
def launches(draw: st.DrawFn) -> Any:
    values = draw(st.dictionaries(st.sampled_from(_METRICS), st.floats(0, 101), max_size=4))
    values |= draw(st.dictionaries(st.sampled_from(_COUNTS), st.sampled_from([0.0, 1.0, 32.0, 96.0, 4e8]), max_size=3))
    values |= draw(st.sampled_from([{}, {"stall_share__wait": 40.0, "stall_share__barrier": 30.0}]))
    name = draw(st.sampled_from(["f(float *)", "void f<(int)1>(float *)", "f<2>", "ns::g()", "h"]))
    us = draw(st.one_of(st.none(), st.sampled_from([0.0, 10.0, 10.1, 12.0]), st.floats(1e-3, 1e4)))
    device = draw(st.sampled_from(["0", "0", "1"]))
    return launch(name, us=us, device=device, name=draw(st.sampled_from(["", "NVIDIA H100 80GB HBM3"])), **values)


@st.composite
def modules(draw: st.DrawFn) -> Any:
    names = draw(st.lists(st.sampled_from(["_Z1fPf", "_Z1fIiEvPT_", "_Z1gPf"]), min_size=1, max_size=3, unique=True))
    mixes = [{**MIX, Kind.FP64: draw(st.integers(0, 50))} for _ in names]
    told = draw(st.sampled_from([None, Assembled(32, 0, 0, 0, 0), Assembled(200, 64, 40, 80, 0)]))
    functions = [
        function(name, mix, virtual=draw(st.sampled_from([10, 900]))) for name, mix in zip(names, mixes, strict=True)
    ]
    return ptx(*functions, assembled=[told] * draw(st.integers(0, len(names))))


layers = st.builds(
    Layers,
    source=st.one_of(st.none(), st.sampled_from(_SOURCES)),
    ptx=st.one_of(st.none(), modules()),
    ncu=st.one_of(st.none(), st.lists(launches(), min_size=1, max_size=4).map(lambda found: ncu(*found))),
)


def mirrored(value: Any) -> Any:
    """The same seen from the other side: `a` and `b` have changed places, everywhere."""
    if isinstance(value, Winner):
        return _MIRRORED.get(value, value)
    if isinstance(value, Layers | Reconciliation | enum.Enum):
        return value
    if isinstance(value, tuple):
        return tuple(map(mirrored, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: mirrored(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return type(value)(**{_other(name): found for name, found in fields.items()})


def _other(name: str) -> str:
    swapped = {"a": "b", "b": "a"}
    stem, line, side = name.rpartition("_")
    return f"{stem}{line}{swapped.get(side, side)}" if line else swapped.get(name, name)


def compare(a: Layers, b: Layers, *, whole_runs: bool = False) -> Comparison:
    return compare_layers(a, b, "left", "left", whole_runs=whole_runs)


@given(layers, layers, st.booleans())
def test_the_other_way_around(a: Layers, b: Layers, whole_runs: bool) -> None:
    assert _unordered(compare(b, a, whole_runs=whole_runs)) == _unordered(
        mirrored(compare(a, b, whole_runs=whole_runs))
    )


def _unordered(found: Comparison) -> Comparison:
    """Of two kernels that have changed names with each other, and took as long, either may come first."""
    if found.ncu is None:
        return found
    kernels = found.ncu.kernels
    times = [max(one.seconds_a or 0.0, one.seconds_b or 0.0) for one in kernels]
    assert times == sorted(times, reverse=True)
    return dataclasses.replace(found, ncu=dataclasses.replace(found.ncu, kernels=tuple(sorted(kernels, key=repr))))


@given(layers)
def test_a_thing_equals_itself(a: Layers) -> None:
    found = compare(a, a)
    anything = any(one.available for one in found.scorecard) or found.verdict.time is not None
    assert found.verdict.winner is (Winner.TIE if anything else Winner.UNKNOWN)
    assert found.findings == ()
    for diff in (found.source, found.ptx, found.ncu):
        for kernel in () if diff is None else diff.kernels:
            assert all(change.a == change.b for change in kernel.changes)
    assert all(one.winner in (Winner.TIE, Winner.UNKNOWN) for one in found.scorecard)


@given(layers, layers)
def test_scores_are_shares_and_a_winner_has_evidence(a: Layers, b: Layers) -> None:
    found = compare(a, b)
    for one in found.scorecard:
        assert all(score is None or 0 <= score <= 1 for score in (one.score_a, one.score_b))
    if found.verdict.winner is not Winner.UNKNOWN:
        assert found.verdict.time is not None or any(one.available for one in found.scorecard)
