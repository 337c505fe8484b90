"""Regions that oneDNN computes: against torch's operators, step by step and in random chains."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from frx_graph.facts.layout import make_ordered_strides
from frx_graph.ops import onednn_region
from frx_graph.ops.onednn import library
from frx_graph.ops.onednn.library import OneDnnError, find_library
from frx_graph.ops.onednn.program import Program
from frx_graph.ops.onednn.steps import (
    Concatenation,
    Convolution,
    Elementwise,
    Following,
    Operand,
    Pooling,
    Product,
    Region,
    Reshape,
    Step,
    TensorLayout,
    read_region,
    write_region,
)
from frx_graph.ops.onednn.torch_steps import compute_region

compute = torch.ops.frx_graph.onednn_region.default
REASON = found if isinstance(found := find_library(), str) else ""
needs_library = pytest.mark.skipif(bool(REASON), reason=REASON)
ACTIVATIONS = (
    Following("relu"),
    Following("relu", 0.1),
    Following("tanh"),
    Following("linear", 0.5, 1.0),
    Following("sigmoid"),
    Following("gelu"),
    Following("swish", 1.0),
    Following("clip", 0.0, 6.0),
    Following("clip", -math.inf, 0.5),
    Following("hardswish", 1 / 6, 0.5),
)


def describe(shape: Sequence[int], order: Sequence[int] | None = None) -> TensorLayout:
    strides = make_ordered_strides(tuple(shape), tuple(order or range(len(shape))))
    return TensorLayout(tuple(shape), tuple(strides))


def make_region(
    inputs: Sequence[TensorLayout], steps: Sequence[Step], *outputs: int, order: Sequence[int] | None = None
) -> Region:
    """Return a region with these outputs: the last step's result if none is named."""
    numbers = outputs or (len(inputs) + len(steps) - 1,)
    shapes = [(*[each.shape for each in inputs], *[step.shape for step in steps])[number] for number in numbers]
    return Region(tuple(inputs), tuple(steps), numbers, tuple(describe(shape, order) for shape in shapes))


def check(region: Region, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> list[Tensor]:
    """Compare the operator with torch's; return its results."""
    text = write_region(region)
    assert read_region(text) == region
    expected = compute_region(region, inputs, constants)
    for _ in range(2):
        found = compute(inputs, constants, text)
        for one, other, described in zip(found, expected, region.results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
            assert one.stride() == described.strides
    return list(found)


def convolution(image: int, weight: Tensor, shape: Sequence[int], *, number: int = 0, **how: object) -> Convolution:
    rank = weight.dim() - 2
    ones, zeros = (1,) * rank, (0,) * rank
    settings = {"stride": ones, "before": zeros, "behind": zeros, "dilation": ones, "groups": 1, **how}
    return Convolution(image, number, None, shape=tuple(shape), **settings)  # type: ignore[arg-type]


@needs_library
@pytest.mark.filterwarnings("error:frx. torch computes a part")
class TestSteps:
    @pytest.mark.parametrize("following", ACTIVATIONS, ids=lambda one: f"{one.algorithm}-{one.alpha}")
    def test_activations(self, following: Following) -> None:
        shape = (2, 16, 5, 6)
        weight = torch.randn(16, 16, 1, 1)
        steps: list[Step] = [convolution(0, weight, shape, following=(following,)), Elementwise(1, shape, (following,))]
        check(make_region([describe(shape)], steps, 1, 2), [torch.randn(shape)], [weight])

    @pytest.mark.parametrize("algorithm", ["max", "average", "average_inside"])
    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
    def test_poolings(self, algorithm: str, order: tuple[int, ...]) -> None:
        step = Pooling(0, algorithm, (3, 2), (2, 1), (1, 0), (1, 1), (2, 16, 4, 6))  # type: ignore[arg-type]
        given = describe((2, 16, 7, 6), order)
        x = torch.empty_strided(given.shape, given.strides).normal_()
        check(make_region([given], [step], order=order), [x], [])

    @pytest.mark.parametrize("algorithm", ["add", "sub", "mul"])
    @pytest.mark.parametrize("other", [(2, 16, 5, 6), (2, 16, 1, 1), (1, 16, 1, 1)])
    def test_operations_with_a_value(self, algorithm: str, other: tuple[int, ...]) -> None:
        shape = (2, 16, 5, 6)
        weight = torch.randn(16, 16, 1, 1)
        following = (Following(algorithm, operand=Operand(1)), Following("relu"))  # type: ignore[arg-type]
        steps: list[Step] = [convolution(0, weight, shape, following=following), Elementwise(0, shape, following)]
        check(
            make_region([describe(shape), describe(other)], steps, 2, 3),
            [torch.randn(shape), torch.randn(other)],
            [weight],
        )

    @pytest.mark.parametrize("other", [(16, 1, 1), (1, 16, 1, 1), (2, 16, 5, 6), ()])
    def test_operations_with_a_constant(self, other: tuple[int, ...]) -> None:
        shape = (2, 16, 5, 6)
        step = Elementwise(0, shape, (Following("tanh"), Following("mul", operand=Operand(0, constant=True))))
        check(make_region([describe(shape)], [step]), [torch.randn(shape)], [torch.randn(other)])

    @pytest.mark.parametrize("bias", [None, 1])
    @pytest.mark.parametrize("transposed", [False, True])
    def test_products(self, bias: int | None, transposed: bool) -> None:
        weight = torch.randn(7, 9).t() if transposed else torch.randn(9, 7)
        step = Product(0, 0, bias, (5, 7), (Following("gelu"), Following("add", operand=Operand(1))))
        inputs = [torch.randn(5, 9), torch.randn(5, 7)]
        check(make_region([describe((5, 9)), describe((5, 7))], [step]), inputs, [weight, torch.randn(7)])

    def test_values_side_by_side_and_in_another_shape(self) -> None:
        shape, wide = (2, 16, 5, 6), (2, 48, 5, 6)
        weight = torch.randn(32, 16, 1, 1)
        steps: list[Step] = [
            convolution(0, weight, (2, 32, 5, 6)),
            Concatenation((0, 1), 1, wide),
            Pooling(2, "average", (5, 6), (1, 1), (0, 0), (0, 0), (2, 48, 1, 1)),
            Reshape(3, (2, 48)),
            Reshape(2, (2, 48 * 30)),
        ]
        check(make_region([describe(shape)], steps, 4, 5, 2), [torch.randn(shape)], [weight])

    def test_a_volume(self) -> None:
        weight = torch.randn(4, 4, 3, 3, 3)
        step = convolution(0, weight, (1, 4, 5, 5, 5), before=(1, 1, 1), behind=(1, 1, 1))
        check(make_region([describe((1, 4, 5, 5, 5))], [step]), [torch.randn(1, 4, 5, 5, 5)], [weight])

    def test_results_have_memory_of_their_own(self) -> None:
        """One value returned twice, a view of it, and an input."""
        shape = (2, 16, 5, 6)
        steps = [Elementwise(0, shape, (Following("relu"),)), Reshape(1, (2, 480))]
        x = torch.randn(shape)
        found = check(make_region([describe(shape)], steps, 1, 1, 2, 0), [x], [])
        assert len({tensor.untyped_storage().data_ptr() for tensor in (*found, x)}) == 5


@needs_library
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_convolutions(data: st.DataObject) -> None:
    draw = data.draw
    groups = draw(st.sampled_from([1, 2, 4]))
    inner, outer = groups * draw(st.sampled_from([1, 3, 8])), groups * draw(st.sampled_from([1, 2, 16]))
    kernel, stride, dilation = (draw(st.tuples(st.integers(1, 3), st.integers(1, 3))) for _ in range(3))
    before, behind = (draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in range(2))
    size = draw(st.tuples(st.integers(7, 12), st.integers(7, 12)))
    result = [
        (n + a + b - d * (k - 1) - 1) // s + 1
        for n, a, b, d, k, s in zip(size, before, behind, dilation, kernel, stride, strict=True)
    ]
    shape, full = (2, inner, *size), (2, outer, *result)
    order = draw(st.sampled_from([(0, 1, 2, 3), (0, 2, 3, 1)]))
    given_, weight = describe(shape, order), torch.randn(outer, inner // groups, *kernel)
    following = tuple(draw(st.lists(st.sampled_from(ACTIVATIONS), max_size=2)))
    step = convolution(
        0,
        weight,
        full,
        stride=stride,
        before=before,
        behind=behind,
        dilation=dilation,
        groups=groups,
        following=following,
    )
    x = torch.empty_strided(given_.shape, given_.strides).normal_()
    region = make_region([given_], [step, Elementwise(1, full, (Following("add", operand=Operand(1)),))])
    check(region, [x], [weight])


def residual_chain(depth: int = 6) -> tuple[Region, list[Tensor]]:
    shape = (1, 16, 12, 12)
    weights = [torch.randn(16, 16, 3, 3) / 12 for _ in range(depth)]
    steps: list[Step] = []
    for index, weight in enumerate(weights):
        following = (Following("add", operand=Operand(index)), Following("relu"))
        pads = {"before": (1, 1), "behind": (1, 1)}
        steps.append(convolution(index, weight, shape, number=index, following=following, **pads))
    return make_region([describe(shape)], steps), weights


@needs_library
@pytest.mark.filterwarnings("error:frx. torch computes a part")
class TestPrograms:
    def test_values_that_are_never_needed_together_share_memory(self) -> None:
        region, weights = residual_chain(12)
        found = find_library()
        assert not isinstance(found, str)
        one_image = math.prod(region.results[0].shape) * 4
        assert Program(found, region, weights)._arena.numel() <= 4 * one_image

    def test_one_description_with_other_constants_is_another_program(self) -> None:
        region, weights = residual_chain(2)
        x = torch.randn(region.inputs[0].shape)
        check(region, [x], weights)
        check(region, [x], [2 * weight for weight in weights])

    def test_programs_are_forgotten(self) -> None:
        region, weights = residual_chain(2)
        x = torch.randn(region.inputs[0].shape)
        check(region, [x], weights)
        weights[0].data.mul_(2)
        onednn_region.forget_programs()
        check(region, [x], weights)

    def test_inputs_in_other_strides_are_copied(self) -> None:
        region, weights = residual_chain(2)
        x = torch.randn(region.inputs[0].shape).to(memory_format=torch.channels_last)
        check(region, [x], weights)

    def test_results_of_one_call_outlive_the_next(self) -> None:
        region, weights = residual_chain(2)
        first, second = (torch.randn(region.inputs[0].shape) for _ in range(2))
        (kept,) = compute([first], weights, write_region(region))
        compute([second], weights, write_region(region))
        torch.testing.assert_close(kept, compute_region(region, [first], weights)[0], rtol=1e-4, atol=1e-4)

    def test_a_program_runs_in_another_thread_than_it_was_made_in(self) -> None:
        """Strided kernels and products note down what they compute with."""
        shape = (1, 64, 14, 14)
        weights = [torch.randn(128, 64, 1, 1), torch.randn(128, 128, 3, 3), torch.randn(128 * 49, 10)]
        steps: list[Step] = [
            convolution(0, weights[0], (1, 128, 7, 7), stride=(2, 2)),
            convolution(1, weights[1], (1, 128, 7, 7), number=1, before=(1, 1), behind=(1, 1)),
            Reshape(2, (1, 128 * 49)),
            Product(3, 2, None, (1, 10), (Following("gelu"),)),
        ]
        region, x = make_region([describe(shape)], steps), torch.randn(shape)
        text = write_region(region)
        expected = compute([x], weights, text)
        found: list[Tensor] = []
        thread = threading.Thread(target=lambda: found.extend(compute([x], weights, text)))
        thread.start()
        thread.join()
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_the_default_type_does_not_matter(self, dtype: torch.dtype) -> None:
        region, weights = residual_chain(2)
        x = torch.randn(region.inputs[0].shape)
        torch.set_default_dtype(dtype)
        try:
            (found,) = compute([x], weights, write_region(region))
        finally:
            torch.set_default_dtype(torch.float32)
        torch.testing.assert_close(found, compute_region(region, [x], weights)[0], rtol=1e-4, atol=1e-4)

    def test_a_primitive_that_fails_leaves_the_region_to_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        region, weights = residual_chain(2)
        x, text = torch.randn(region.inputs[0].shape), write_region(region)
        check(region, [x], weights)

        def fail(*_: object) -> list[Tensor]:
            raise OneDnnError("a primitive of oneDNN failed")

        monkeypatch.setattr(Program, "run", fail)
        with pytest.warns(RuntimeWarning, match="a primitive of oneDNN failed"):
            found = compute([x], weights, text)
        torch.testing.assert_close(found, compute_region(region, [x], weights))
        onednn_region.forget_programs()

    def test_threads_take_turns(self) -> None:
        region, weights = residual_chain(4)
        text = write_region(region)
        images = [torch.randn(region.inputs[0].shape) for _ in range(4)]
        wrong: list[int] = []

        def work(index: int) -> None:
            expected = compute_region(region, [images[index]], weights)[0]
            found = [compute([images[index]], weights, text)[0] for _ in range(50)]
            wrong.extend(index for one in found if not torch.allclose(one, expected, rtol=1e-3, atol=1e-3))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(images))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_what_onednn_cannot_describe_is_refused(self) -> None:
        region, weights = residual_chain(1)
        found = find_library()
        assert not isinstance(found, str)
        with pytest.raises(OneDnnError, match="convolution"):
            Program(found, region, [weights[0][:, :3]])


def test_torch_computes_what_onednn_cannot_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_region, "find_library", lambda: "oneDNN's library is not installed")
    onednn_region.forget_programs()
    region, weights = residual_chain(2)
    x = torch.randn(region.inputs[0].shape)
    with pytest.warns(RuntimeWarning, match="not installed"):
        found = compute([x], weights, write_region(region))
    torch.testing.assert_close(found, compute_region(region, [x], weights))
    onednn_region.forget_programs()


class TestLibrary:
    def test_a_missing_library_is_named_with_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(library, "_find_file", lambda: "libmissing.so")
        reason = find_library.__wrapped__()
        assert isinstance(reason, str)
        assert "pip install" in reason

    def test_another_library_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(library, "_find_file", lambda: "libm.so.6")
        assert "oneDNN cannot be loaded" in str(find_library.__wrapped__())

    @needs_library
    def test_two_openmp_libraries_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(library, "_list_openmp_runtimes", lambda: ["/a/libgomp.so.1", "/b/libiomp5.so"])
        assert "several OpenMP libraries" in str(find_library.__wrapped__())
