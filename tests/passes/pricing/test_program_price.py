"""What a run costs under each compiler, and that gains are differences of such prices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._inductor import inductor_prims
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.compiler_graphs import wrap_aot_graph
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.operator_overload import find_overload
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.ops import onednn_linear
from frx_graph.passes.pricing.program_price import PricedProgram, build_priced_program, price_gain

BANDWIDTH = 1e9
CALLS = tuple(OperatorSignature(f"test.call{number}.default", ()) for number in range(4))


def facts_of(program, *operands: tuple[int, ...] | Tensor) -> GraphFacts:
    values = [one if isinstance(one, Tensor) else torch.empty(one) for one in operands]
    with torch.no_grad():
        module = make_fx(program, tracing_mode="fake")(*values)
    return build_graph_facts(wrap_aot_graph(module, graph_id="g", phase=Phase.FORWARD, train=False, static_inputs=()))


def images(*operands: tuple[int, ...]) -> list[Tensor]:
    return [torch.empty(shape, memory_format=torch.channels_last) for shape in operands]


def convolve(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = torch.relu(torch.conv2d(x, weight, padding=1))
    return x


SHAPES = ((2, 8, 16, 16), (8, 8, 3, 3), (8, 8, 3, 3))
WEIGHT = 8 * 8 * 3 * 3 * 4
IMAGE = 2 * 8 * 16 * 16 * 4


def times(*programs: PricedProgram, seconds: float = 1.0) -> Mapping[OperatorSignature, float]:
    return {call: seconds for program in programs for call in program.calls}


programs = st.builds(
    PricedProgram,
    calls=st.dictionaries(st.sampled_from(CALLS), st.integers(1, 5)),
    call_bytes=st.just(dict.fromkeys(CALLS, 1000)),
    moved_bytes=st.integers(0, 10**9),
    loops=st.integers(0, 100),
    loop_seconds=st.floats(0, 1),
    start_seconds=st.just(1e-6),
)
timings = st.fixed_dictionaries(dict.fromkeys(CALLS, st.floats(0, 1)))


@given(programs, programs, timings)
def test_a_gain_is_never_more_than_the_run(before, after, timed):
    gain = price_gain(before, after, timed, BANDWIDTH)
    assert gain is not None
    assert gain <= before.sum_seconds(timed, BANDWIDTH)


@given(programs, timings)
def test_no_change_gains_nothing(program, timed):
    assert price_gain(program, program, timed, BANDWIDTH) == 0.0
    assert price_gain(program, program, {}, BANDWIDTH) == 0.0


@given(st.lists(programs, min_size=2, max_size=6), timings)
def test_gains_of_the_parts_add_up_to_that_of_the_whole(steps, timed):
    parts = [price_gain(one, other, timed, BANDWIDTH) for one, other in itertools.pairwise(steps)]
    whole = price_gain(steps[0], steps[-1], timed, BANDWIDTH)
    assert math.isclose(math.fsum(parts), whole, abs_tol=1e-9)


def test_a_call_without_a_time_must_be_in_both_programs():
    first, second = (PricedProgram({call: 1}, {call: 10**9}) for call in CALLS[:2])
    both = PricedProgram({CALLS[0]: 1, CALLS[1]: 1}, dict.fromkeys(CALLS, 10**9))
    assert price_gain(first, second, {CALLS[1]: 1.0}, BANDWIDTH) is None
    assert price_gain(first, second, {CALLS[0]: 3.0, CALLS[1]: 1.0}, BANDWIDTH) == pytest.approx(2.0)
    assert price_gain(both, first, {CALLS[1]: 1.0}, BANDWIDTH) == pytest.approx(1.0)
    # Its traffic is the least that it can take.
    assert both.sum_seconds({CALLS[1]: 1.0}, BANDWIDTH) == pytest.approx(2.0)


def test_eager_runs_each_operator_by_itself():
    program = build_priced_program(facts_of(convolve, *SHAPES), "eager")
    assert sum(program.calls.values()) == 2
    assert (program.loops, program.moved_bytes) == (2, 2 * 2 * IMAGE)


def test_inductor_fuses_loops():
    facts = facts_of(lambda x, y: torch.sin(torch.relu(x) + y), (64, 64), (64, 64))
    size = 64 * 64 * 4
    fused, eager = (build_priced_program(facts, inner) for inner in ("inductor", "eager"))
    assert (fused.loops, fused.moved_bytes) == (1, 3 * size)
    assert (eager.loops, eager.moved_bytes) == (3, 7 * size)


def test_inductor_converts_what_its_own_choice_needs():
    facts = facts_of(convolve, *SHAPES)
    as_traced, forced = (build_priced_program(facts, "inductor", channels_last=wanted) for wanted in (False, True))
    # The image, and both weights. Loops write what they make in the order that is read.
    assert forced.moved_bytes - as_traced.moved_bytes == 2 * (IMAGE + 2 * WEIGHT)
    for call in forced.calls:
        image, weight = call.tensors
        assert image.strides[1] == weight.strides[1] == 1
    assert all(call.tensors[0].strides[1] == 256 for call in as_traced.calls)


def test_what_inductor_does_alone_gains_nothing():
    """A program that was written in channels-last, and one that Inductor lays out so, run the same calls."""
    traced = facts_of(convolve, *SHAPES)
    written = facts_of(convolve, *images(*SHAPES))
    alone = build_priced_program(traced, "inductor", channels_last=True)
    for forced in (False, True):
        changed = build_priced_program(written, "inductor", channels_last=forced)
        assert changed.calls == alone.calls
        # Only what is stored in channels-last from the first is not converted.
        gain = price_gain(alone, changed, times(alone), BANDWIDTH)
        assert gain == pytest.approx(2 * (IMAGE + 2 * WEIGHT) / BANDWIDTH)


def test_explicit_conversions_cost_what_inductors_own_do():
    def converted(x: Tensor, *weights: Tensor) -> Tensor:
        order = inductor_prims.force_stride_order
        return convolve(order(x, (2048, 1, 128, 8)), *(order(weight, (72, 1, 24, 8)) for weight in weights))

    alone = build_priced_program(facts_of(convolve, *SHAPES), "inductor", channels_last=True)
    changed = build_priced_program(facts_of(converted, *SHAPES), "inductor")
    assert changed.calls == alone.calls
    assert price_gain(alone, changed, times(alone), BANDWIDTH) == pytest.approx(0.0)


def test_a_copy_fuses_with_the_loop_that_makes_the_value():
    def copied(x: Tensor) -> Tensor:
        return torch.relu(x).clone(memory_format=torch.channels_last)

    fused = build_priced_program(facts_of(copied, SHAPES[0]), "inductor")
    assert fused.moved_bytes == 2 * IMAGE
    eager = build_priced_program(facts_of(copied, SHAPES[0]), "eager")
    assert [call.target for call in eager.calls] == ["aten.clone.default"]


def test_constants_are_computed_once():
    def program(x: Tensor, weight: Tensor) -> Tensor:
        return torch.mm(x, weight.t().contiguous())

    facts = facts_of(program, (32, 16), (64, 16))
    (copy,) = (name for op in facts.ops if op.operator == "aten.clone" for name in op.outputs)
    assert len(build_priced_program(facts, "eager").calls) == 2
    (call,) = build_priced_program(facts, "eager", constants={copy}).calls
    assert call.target == "aten.mm.default"


def test_a_measured_loop_costs_its_time_in_the_order_that_it_runs_in():
    facts = facts_of(lambda x: torch.max_pool2d(x, 2), SHAPES[0])
    (node,) = (op.node for op in facts.ops if "max_pool2d" in op.operator)
    known = {node: {(0, 1, 2, 3): 3.0, (0, 2, 3, 1): 1.0}}
    plain, forced = (
        build_priced_program(facts, "inductor", channels_last=wanted, loop_seconds=known) for wanted in (False, True)
    )
    assert price_gain(plain, forced, {}, BANDWIDTH) == pytest.approx(2.0)


def test_inductors_own_pooling_is_a_loop():
    """Eager runs a prim by its decomposition, whose time would say nothing."""

    def pooled(x: Tensor) -> Tensor:
        pool = torch.ops.prims._low_memory_max_pool_with_offsets
        return pool(x, [2, 2], [2, 2], [0, 0], [1, 1], False)[0]

    program = build_priced_program(facts_of(pooled, SHAPES[0]), "inductor")
    assert not program.calls
    assert program.loops == 1
    assert program.moved_bytes >= IMAGE + IMAGE // 4


def test_products_and_custom_operators_are_library_calls():
    def program(x: Tensor, w: Tensor, batch: Tensor) -> tuple[Tensor, ...]:
        product = find_overload(onednn_linear.TARGET)(x, w, None)
        return torch.mm(x, w), torch.bmm(batch, batch), product, torch.sort(x)[0]

    facts = facts_of(program, (64, 64), (64, 64), (2, 8, 8))
    for inner in ("eager", "inductor"):
        targets = {call.target for call in build_priced_program(facts, inner).calls}
        assert targets == {"aten.mm.default", "aten.bmm.default", "frx_graph.product.default", "aten.sort.default"}
