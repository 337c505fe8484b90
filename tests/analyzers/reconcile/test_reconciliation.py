"""Kernels are matched by name, and only then do layers meet; what stands alone is told."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import FEW_EXAMPLES

from frx_graph.analyzers.layers import Layers
from frx_graph.analyzers.reconcile import DIAGNOSES
from frx_graph.analyzers.reconcile.matched_kernels import match_kernels
from frx_graph.analyzers.reconcile.reconciliation import Reconciliation, Why, reconcile

MEMORY = DIAGNOSES[0].name
SOL = {"compute_throughput": 20.0, "memory_throughput": 50.0}
SLOW = {**SOL, "sectors_per_load": 20.0}
STRIDED = "__global__ void %s(const float* a, float* b, int n) { b[threadIdx.x] = a[threadIdx.x * n]; }\n"
LOAD = "ld.global.f32 %f1, [%rd1]; "


def matched(found: Reconciliation) -> dict[str, list[str]]:
    return {
        kernel.name: [
            *(["source"] if kernel.source is not None else []),
            *(["ptx"] if kernel.ptx else []),
            *(["ncu"] if kernel.ncu else []),
            *(["profiler"] if kernel.runs else []),
        ]
        for kernel in found.kernels
    }


def confidences(found: Reconciliation) -> dict[str, str]:
    return {one.kernel.name: one.confidence.label for one in found.diagnoses if one.rule.name == MEMORY}


def of_memory(found: Reconciliation) -> list[str]:
    return [one.confidence.label for one in found.diagnoses if one.rule.name == MEMORY]


def test_no_layers_give_an_empty_result() -> None:
    assert reconcile(Layers()) == Reconciliation((), (), (), (), ())


def test_one_kernel_in_four_layers(program) -> None:
    program.source(STRIDED % "k").ptx(_Z1kPKfPfi=LOAD)
    program.counters({"k(const float *, float *, int)": SLOW}).run("k(float const*, float*, int)")
    found = program.reconcile()
    assert matched(found) == {"k(const float *, float *, int)": ["source", "ptx", "ncu", "profiler"]}
    assert confidences(found) == {"k(const float *, float *, int)": "confirmed"}
    assert [str(layer) for layer in found.layers_available] == ["source", "ptx", "ncu", "profiler"]
    assert found.diagnoses[0].kernel.runtime_share == 1.0
    assert [one for one in found.missing if one.rule.name == MEMORY] == []


def test_source_of_one_kernel_is_not_evidence_for_another(program) -> None:
    program.source(STRIDED % "a").ncu(b=SLOW)
    assert confidences(program.reconcile()) == {"a": "medium", "b": "high"}
    program.ncu(b={**SOL, "sectors_per_load": 4.0, "sectors_per_store": 4.0})
    assert confidences(program.reconcile()) == {"a": "medium"}


def test_instances_of_a_template_are_kernels_of_their_own(program) -> None:
    names = ["void k<16>(float const*, float*, int)", "void k<32>(float const*, float*, int)"]
    program.source("template <int N>\n" + STRIDED % "k")
    program.counters({names[0]: SLOW, names[1]: {**SOL, "sectors_per_load": 4.0, "sectors_per_store": 4.0}})
    found = program.reconcile()
    assert confidences(found) == {names[0]: "confirmed"}
    assert [one.kernel.name for one in found.unreconciled if one.why is Why.REFUTED and one.kernel] == [names[1]]


def test_a_bare_name_is_none_of_two_instances(program) -> None:
    program.ptx(_Z1kILi16EEvPKfPfi=LOAD, _Z1kILi32EEvPKfPfi=LOAD).ncu(k=SLOW)
    assert matched(program.reconcile()) == {
        "_Z1kILi16EEvPKfPfi": ["ptx"],
        "_Z1kILi32EEvPKfPfi": ["ptx"],
        "k": ["ncu"],
    }
    program.ptx(_Z1kILi16EEvPKfPfi=LOAD)
    assert matched(program.reconcile()) == {"k": ["ptx", "ncu"]}


def test_names_that_a_layer_has_apart_are_of_two_kernels(program) -> None:
    # Which function the argument is cannot be told from these names, but they are two.
    names = ["_Z1kIXadL_Z1fPfEEEvPKfPfi", "_Z1kIXadL_Z1gPfEEEvPKfPfi"]
    program.ptx(**dict.fromkeys(names, LOAD))
    assert matched(program.reconcile()) == {name: ["ptx"] for name in names}
    program.counters({"void k<&(f(float*))>(float const*, float*, int)": SLOW})
    assert sorted(map(len, matched(program.reconcile()).values())) == [1, 1, 1]


def test_thousands_of_instances_are_matched_one_by_one(program) -> None:
    counted = {f"void k<{number}>(float const*, float*, int)": SOL for number in range(3000)}
    program.counters(counted).run(*[name for name in counted if name.endswith("7>(float const*, float*, int)")])
    found = program.reconcile()
    assert len(found.kernels) == 3000
    assert sum(bool(kernel.ncu and kernel.runs) for kernel in found.kernels) == 300


def test_many_similar_kernel_names_stay_separate(program) -> None:
    program.counters({f"k(t{number}*)": SOL for number in range(600)}).run("k(t5*)")
    assert len(program.reconcile().kernels) == 600


def test_of_two_with_a_name_in_the_source_neither_is_taken(program) -> None:
    program.source(STRIDED % "k" + "__global__ void k(double* a) { a[threadIdx.x] = 0; }").ncu(k=SLOW)
    found = program.reconcile()
    assert of_memory(found) == ["high", "medium"]
    assert [kernel.source.overloaded for kernel in found.kernels if kernel.source is not None] == [True]
    program.source("namespace my { " + STRIDED % "k" + " }" + STRIDED % "k")
    assert of_memory(program.reconcile()) == ["high", "medium", "medium"]
    program.counters({"my::k(const float *, float *, int)": SLOW})
    assert of_memory(program.reconcile()) == ["confirmed", "medium"]


def test_launch_finding_belongs_to_its_kernel(program) -> None:
    launched = "void run(const float* i, float* o, int n) { my::k<<<n, 16>>>(i, o, n); }"
    program.source("namespace my { " + STRIDED % "k" + " }\n" + launched)
    (kernel,) = match_kernels(Layers(source=program.layers["source"]))
    assert kernel.source is not None
    assert {finding.card.id for finding in kernel.source.findings} == {"uncoalesced_access", "poor_block_size_subwarp"}
    program.source(launched)
    (kernel,) = match_kernels(Layers(source=program.layers["source"]))
    assert kernel.source is not None
    assert (kernel.name, kernel.source.kernel) == ("my::k", None)


def test_ambiguous_launch_finding_belongs_to_neither_kernel(program) -> None:
    launched = "void run(const float* i, float* o, int n) { k<<<n, 16>>>(i, o, n); }"
    program.source(f"namespace a {{ {STRIDED % 'k'} }} namespace b {{ {STRIDED % 'k'} }} {launched}").ncu(k=SLOW)
    found = program.reconcile()
    assert sorted(one.label for one in found.diagnoses[0].agreeing) == ["uncoalesced_access"]
    told = [(one.rule.name, one.kernel.source is not None, one.kernel.ncu != ()) for one in found.diagnoses]
    assert sorted(told) == [
        (MEMORY, False, True),
        (MEMORY, True, False),
        (MEMORY, True, False),
        ("low_occupancy", True, False),
    ]


def test_single_layer_finding_stays_unreconciled(program) -> None:
    program.source("__global__ void k(float* a) { if (threadIdx.x % 2) a[0] = 1; else a[1] = 2; }")
    program.ncu(k={"compute_throughput": 20.0, "memory_throughput": 90.0, "dram_throughput": 90.0}).run("k(float*)")
    found = program.reconcile()
    alone = {one.label: (one.layer.value, one.kernel) for one in found.unreconciled if one.why is Why.ONE_LAYER}
    assert alone["warp_divergence"][0] == "source"
    assert alone["memory_bandwidth_bound"][0] == "ncu"


def test_every_finding_is_in_a_diagnosis_or_unreconciled(program) -> None:
    program.zoo("uncoalesced_access_bad").ptx(_Z9transposePKfPfii=LOAD * 30).ncu(transpose=SLOW)
    found = program.reconcile()
    told = {(one.layer, one.label) for diagnosis in found.diagnoses for one in diagnosis.agreeing}
    told |= {(one.layer, one.label) for one in found.unreconciled}
    labels = {("ncu", label.label) for kernel in program.layers["ncu"].analysis.kernels for label in kernel.labels}
    labels |= {("ptx", label.label) for kernel in program.layers["ptx"].analysis.kernels for label in kernel.labels}
    labels |= {("source", finding.card.id) for finding in program.layers["source"].analysis.findings}
    assert labels <= {(layer.value, label) for layer, label in told}


HOSTILE = ["[red]k[/]", "\x1b[31mk", "k; rm -rf /", "$(reboot)", "k\n2", "‮k", "<script>", "", "'", "_Z"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_kernels_like_others(program, name: str) -> None:
    program.counters({name: SLOW}).source(STRIDED % "k")
    found = program.reconcile()
    assert {one.name for one in found.kernels} == {name, "k"}
    assert confidences(found)[name] == "high"


KERNELS = ["void k<16>(float const*, float*, int)", "k", "_Z1kPKfPfi", "my::k(float*)", "other"]


@settings(FEW_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(KERNELS), unique=True), st.sampled_from(["k", "other"]))
def test_each_kernel_of_each_layer_is_in_one_place(program, measured: list[str], written: str) -> None:
    program.source(STRIDED % written).counters(dict.fromkeys(measured, SLOW))
    found = program.reconcile("source", "ncu")
    names = [one.summary.kernel for kernel in found.kernels for one in kernel.ncu]
    assert sorted(names) == sorted(measured)
    assert any(kernel.source is not None for kernel in found.kernels)


def test_a_layer_that_agrees_never_takes_from_what_is_known(program) -> None:
    program.source(STRIDED % "k").ptx(_Z1kPKfPfi=LOAD * 30).ncu(k=SLOW).run("k(float const*, float*, int)")
    order = ["low", "medium", "high", "confirmed"]
    for names in permutations(program.layers):
        last = -1
        for count in range(1, len(names) + 1):
            found = confidences(program.reconcile(*names[:count]))
            level = max((order.index(label) for label in found.values()), default=-1)
            assert level >= last
            last = level
        assert last == 3


def test_launch_order_does_not_change_confidences(program) -> None:
    kernels: dict[str, dict[str, Any]] = dict.fromkeys(KERNELS, SLOW)
    program.source(STRIDED % "k").counters(kernels)
    one = program.reconcile()
    program.counters(dict(reversed(kernels.items())))
    assert confidences(program.reconcile()) == confidences(one)
