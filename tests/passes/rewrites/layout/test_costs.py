"""Who can change its order, to what, and what the cheapest choice is when anchors have known prices."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.compiler_graphs import wrap_aot_graph
from frx_graph.facts.build import build_graph_facts
from frx_graph.passes.rewrites.layout.anchor_calls import list_anchor_calls, list_anchor_orders, list_conversion_calls
from frx_graph.passes.rewrites.layout.assignment import find_cheapest_orders, find_undecided_values, propose_orders
from frx_graph.passes.rewrites.layout.ops import MOST_ORDERS, find_possible_orders
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Candidate, Refusal

PLAIN, CHANNELS_LAST = (0, 1, 2, 3), (0, 2, 3, 1)
BANDWIDTH = 1e9


def subject_of(
    program, *shapes: tuple[int, ...], inner: str = "eager", train: bool = False, dynamic: bool = False
) -> RewriteSubject:
    with torch.no_grad():
        module = make_fx(program, tracing_mode="symbolic" if dynamic else "fake")(*map(torch.empty, shapes))
    captured = wrap_aot_graph(module, graph_id="test", phase=Phase.FORWARD, train=train, static_inputs=())
    return RewriteSubject(
        facts=build_graph_facts(captured),
        phase=Phase.FORWARD,
        inner=inner,
        bandwidth_bytes_per_s=BANDWIDTH,
        observable_outputs=frozenset(captured.outputs_visible),
    )


def priced(subject: RewriteSubject, prices: Mapping[str, tuple[float, float]]) -> RewriteSubject:
    """With seconds for each convolution, plain first."""
    orders = {anchor.op.node: list_anchor_orders(anchor) for anchor in subject.anchors}
    seconds = {node: dict(zip(orders[node], both, strict=True)) for node, both in prices.items()}
    return RewriteSubject(
        **{field: getattr(subject, field) for field in subject.__dataclass_fields__} | {"seconds": seconds}
    )


def convolutions(count: int, channels: int = 8) -> tuple:
    weights = [(channels, channels, 3, 3)] * count

    def program(x: Tensor, *w: Tensor) -> Tensor:
        for weight in w:
            x = torch.relu(torch.conv2d(x, weight, padding=1))
        return x

    return program, (2, channels, 16, 16), *weights


VALUE_BYTES = 2 * 8 * 16 * 16 * 4
CONVERSION = 2 * VALUE_BYTES / BANDWIDTH


def test_each_convolution_gets_the_order_that_pays_for_its_conversions() -> None:
    subject = subject_of(*convolutions(3))
    gains = priced(
        subject,
        {
            "convolution": (4 * CONVERSION, CONVERSION),
            "convolution_1": (4 * CONVERSION, CONVERSION),
            "convolution_2": (CONVERSION, 1.5 * CONVERSION),
        },
    )
    assert find_cheapest_orders(gains) == {
        "convolution": CHANNELS_LAST,
        "convolution_1": CHANNELS_LAST,
        # The result is returned plain: one conversion back is made anyway, before it or behind it.
        "convolution_2": PLAIN,
    }


def test_a_gain_below_the_conversions_changes_nothing() -> None:
    subject = subject_of(*convolutions(1))
    (refusal,) = propose_orders(priced(subject, {"convolution": (CONVERSION, 0.1 * CONVERSION)}), "test")
    assert isinstance(refusal, Refusal)
    assert "fastest order" in refusal.reason


def test_difference_within_the_noise_is_refused() -> None:
    subject = subject_of(*convolutions(1))
    (refusal,) = propose_orders(priced(subject, {"convolution": (100 * CONVERSION, 96 * CONVERSION)}), "test")
    assert isinstance(refusal, Refusal)


def test_a_conversion_costs_what_was_measured() -> None:
    subject = priced(subject_of(*convolutions(1)), {"convolution": (4 * CONVERSION, CONVERSION)})
    for measured, chosen in ((CONVERSION, CHANNELS_LAST), (2 * CONVERSION, PLAIN)):
        known = dict.fromkeys((value.name for value in find_undecided_values(subject)), measured)
        assert find_cheapest_orders(replace(subject, conversion_seconds=known)) == {"convolution": chosen}


def test_what_is_undecided_can_be_converted_both_ways() -> None:
    subject = priced(subject_of(*convolutions(1)), {"convolution": (2.0, 1.0)})
    image, *others = find_undecided_values(subject)
    assert others
    assert not find_undecided_values(subject_of(torch.relu, (2, 8, 16, 16)))
    there, back = list_conversion_calls(image)
    assert [call.args[0].strides for call in (there, back)] == [(2048, 256, 16, 1), (2048, 1, 128, 8)]
    assert [dict(call.kwargs) for call in (there, back)] == [
        {"memory_format": torch.channels_last},
        {"memory_format": torch.contiguous_format},
    ]
    for shape, strides in (((2, 8), (8, 1)), ((2, 8, 16), (128, 16, 1))):
        assert not list_conversion_calls(replace(image, shape=shape, strides=strides))
    assert not list_conversion_calls(replace(image, shape=(2, 8, 0, 16)))


def test_saving_is_predicted() -> None:
    subject = subject_of(*convolutions(1))
    (candidate,) = propose_orders(priced(subject, {"convolution": (10 * CONVERSION, CONVERSION)}), "test")
    assert isinstance(candidate, Candidate)
    assert candidate.predicted_seconds is not None
    # In and out are converted.
    assert abs(candidate.predicted_seconds - 7 * CONVERSION) < 1e-9


def test_a_convolution_that_was_not_measured_stays() -> None:
    subject = subject_of(*convolutions(2))
    refusal, candidate = propose_orders(priced(subject, {"convolution": (10.0, 1.0)}), "test")
    assert isinstance(refusal, Refusal)
    assert refusal.nodes == ("convolution_1",)
    assert isinstance(candidate, Candidate)
    assert "convolution_1" not in candidate.nodes


def test_without_a_bandwidth_nothing_is_chosen() -> None:
    subject = subject_of(*convolutions(1))
    unknown = RewriteSubject(subject.facts, subject.phase, subject.inner, observable_outputs=subject.observable_outputs)
    (refusal,) = propose_orders(unknown, "test")
    assert isinstance(refusal, Refusal)
    assert "bandwidth" in refusal.reason


def test_inductor_loops_are_not_anchors_and_every_convolution_gets_an_order() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.max_pool2d(torch.conv2d(x, w, padding=1), 2)

    eager, inductor = (subject_of(program, (2, 8, 16, 16), (8, 8, 3, 3), inner=i) for i in ("eager", "inductor"))
    assert [anchor.op.operator for anchor in eager.anchors] == ["aten.convolution", "aten.max_pool2d_with_indices"]
    assert [anchor.op.operator for anchor in inductor.anchors] == ["aten.convolution"]
    refusal, candidate = propose_orders(priced(inductor, {"convolution": (1.0, 1.0)}), "test")
    assert isinstance(refusal, Refusal)
    assert refusal.nodes == ("max_pool2d_with_indices",)
    assert isinstance(candidate, Candidate)
    assert dict(zip(candidate.nodes, candidate.choices, strict=True))["convolution"] == "0,1,2,3"


def test_orders_reach_through_views() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        tokens = torch.conv2d(x, w).flatten(2).transpose(1, 2)
        return tokens.sin()

    subject = subject_of(program, (2, 8, 4, 6), (16, 8, 1, 1))
    orders = find_possible_orders(subject.members, list_anchor_orders, "eager")
    by_operator = {op.operator: orders[op.outputs[0]] for op in subject.facts.ops if op.outputs[0] in orders}
    assert by_operator["aten.transpose"] == ((0, 2, 1), (0, 1, 2))
    assert set(by_operator["aten.sin"]) == {(0, 2, 1), (0, 1, 2)}
    assert all(len(found) <= MOST_ORDERS for found in orders.values())


def test_in_training_a_convolution_is_timed_with_its_backward() -> None:
    subject = subject_of(*convolutions(2), train=True)
    calls = list_anchor_calls(subject.anchors[1], subject.facts, Phase.FORWARD)
    assert [[form.name for form in forms] for forms in calls[PLAIN].calls] == [
        ["convolution"],
        ["convolution_backward"],
    ]
    backward = calls[CHANNELS_LAST].calls[1][0].calls[0]
    assert [tensor.strides for tensor in backward.tensors[:2]] == [(2048, 1, 128, 8)] * 2
    # Nobody asks for the gradient of the network's own input.
    first = list_anchor_calls(subject.anchors[0], subject.facts, Phase.FORWARD)[PLAIN].calls[1][0].calls[0]
    assert first.args[-1] == (False, True, False)
    assert backward.args[-1] == (True, True, False)


def test_a_convolution_counts_in_its_fastest_form() -> None:
    subject = subject_of(nn.functional.conv2d, (2, 8, 5, 5), (6, 8, 1, 1), (6,), train=True)
    calls = list_anchor_calls(subject.anchors[0], subject.facts, Phase.FORWARD)
    found = {order: [[form.name for form in forms] for forms in call.calls] for order, call in calls.items()}
    assert found == {
        PLAIN: [
            ["convolution", "unfolded_convolution"],
            ["convolution_backward", "unfolded_weight_gradient[1]+sum[2]"],
        ],
        # In channels-last it is a product of views.
        CHANNELS_LAST: [["convolution", "product"], ["convolution_backward", "product[1]+sum[2]"]],
    }


def test_where_sizes_may_change_a_convolution_counts_as_it_is() -> None:
    """No other form is applied there."""
    subject = subject_of(nn.functional.conv2d, (2, 8, 5, 5), (6, 8, 1, 1), (6,), train=True, dynamic=True)
    for call in list_anchor_calls(subject.anchors[0], subject.facts, Phase.FORWARD).values():
        assert [[form.name for form in forms] for forms in call.calls] == [["convolution"], ["convolution_backward"]]


def test_a_weight_in_channels_last_is_paid_for_by_a_plain_convolution() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.conv2d(x, w.contiguous(memory_format=torch.channels_last))

    subject = subject_of(program, (2, 8, 16, 16), (8, 8, 3, 3))
    calls = list_anchor_calls(subject.anchors[0], subject.facts, Phase.FORWARD)
    assert calls[PLAIN].moved_bytes == 2 * 8 * 8 * 9 * 4
    assert calls[CHANNELS_LAST].moved_bytes == 0
    prepared = list_anchor_calls(subject.anchors[0], subject.facts, Phase.FORWARD, prepared=True)
    assert prepared[PLAIN].moved_bytes == 0
    assert prepared[PLAIN].calls[0][0].calls[0].tensors[1].strides == (72, 9, 3, 1)


def test_one_pixel_output_takes_the_order_of_its_input() -> None:
    """What a convolution makes of a whole image lies in both orders at once: its own order is that of what it reads."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.conv2d(x.permute(0, 3, 1, 2), w)

    subject = subject_of(program, (2, 6, 6, 8), (16, 8, 6, 6), inner="inductor")
    (anchor,) = subject.anchors
    assert anchor.current == CHANNELS_LAST
    (candidate,) = propose_orders(priced(subject, {"convolution": (1.0, 1.0)}), "test")
    assert isinstance(candidate, Candidate)
    assert dict(zip(candidate.nodes, candidate.choices, strict=True)) == {"convolution": "0,2,3,1"}
