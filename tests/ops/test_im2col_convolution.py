"""The products of unfolded images against torch's own convolutions, in every order of every operand."""

import itertools

import pytest
import torch

import frx_graph.ops.im2col_convolution

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")

# batch, channels in and out, height, width, kernel, stride, padding
CASES = [
    (1, 3, 5, 7, 9, (3, 3), (1, 1), (1, 1)),
    (2, 4, 6, 8, 5, (3, 1), (2, 1), (1, 0)),
    (2, 4, 6, 6, 6, (1, 1), (1, 1), (0, 0)),
    (2, 4, 6, 7, 6, (1, 1), (2, 2), (0, 0)),
    (2, 4, 6, 7, 6, (1, 1), (1, 1), (1, 1)),
    (1, 1, 3, 5, 5, (2, 3), (2, 2), (2, 1)),
    (2, 4, 1, 5, 5, (5, 5), (1, 1), (0, 0)),
    (1, 4, 3, 1, 1, (3, 3), (1, 1), (1, 1)),
    (3, 2, 2, 8, 8, (3, 3), (3, 3), (0, 0)),
]
ORDERS = {False: torch.contiguous_format, True: torch.channels_last}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("operands", list(itertools.product((False, True), repeat=3)), ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_values_and_strides(case, operands: tuple[bool, bool, bool], channels_last: bool) -> None:
    torch.manual_seed(0)
    batch, channels, outputs, height, width, kernel, stride, padding = case
    convolve = (stride, padding, (1, 1), False, (0, 0), 1)
    image, weight = torch.randn(batch, channels, height, width), torch.randn(outputs, channels, *kernel)
    bias = torch.randn(outputs)
    gradient = torch.randn(torch.convolution(image, weight, bias, *convolve).shape)
    x, w, g = (
        tensor.contiguous(memory_format=ORDERS[order])
        for tensor, order in zip((image, weight, gradient), operands, strict=True)
    )
    expected = torch.convolution(image, weight, bias, *convolve)
    to_input, to_weight, _ = torch.ops.aten.convolution_backward(
        gradient, image, weight, None, *convolve, [True, True, False]
    )
    ours = torch.ops.frx_graph
    for operator, args, wanted in (
        (ours.unfolded_convolution, (x, w, bias, stride, padding, channels_last), expected),
        (ours.unfolded_input_gradient, (g, w, x.shape, stride, padding, channels_last), to_input),
        (ours.unfolded_weight_gradient, (g, x, w.shape, stride, padding, channels_last), to_weight),
    ):
        made = operator(*args)
        torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
        assert made.stride() == torch.empty(wanted.shape, memory_format=ORDERS[channels_last]).stride()
        torch.library.opcheck(operator.default, args, test_utils=("test_schema", "test_faketensor"))


def test_an_image_with_gaps() -> None:
    torch.manual_seed(0)
    image, weight = torch.randn(2, 8, 6, 12)[:, ::2, 1:, 2:8], torch.randn(3, 4, 3, 3)
    made = torch.ops.frx_graph.unfolded_convolution(image, weight, None, (1, 1), (0, 0), False)
    torch.testing.assert_close(made, torch.conv2d(image, weight), rtol=1e-4, atol=1e-4)


def test_the_operators_are_there_when_the_module_is() -> None:
    assert str(torch.ops.frx_graph.unfolded_convolution.default) == frx_graph.ops.im2col_convolution.FORWARD
