import pytest
import torch

from frx_graph.measure.operators.conversion_kernels import (
    ConvolutionOperands,
    compute_convolution_output,
    find_conversions,
    is_conversion,
)

TO_NHWC = (
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>"
    "(cudnn::ops::nchw2nhwc_params_t<float>, float const*, float*)"
)
TO_NCHW = (
    "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>"
    "(cudnn::ops::nhwc2nchw_params_t<float>, float const*, float*)"
)
CONVOLUTION = "cudnn_infer_volta_scudnn_128x32_sliced1x4_ldg4_relu_exp_small_nhwc_tn_v1"
IMAGE, WEIGHT, RESULT = (8, 64, 28, 28), (32, 64, 3, 3), (8, 32, 26, 26)


@pytest.mark.parametrize("name", [TO_NHWC, TO_NCHW, "void nchwToNhwcKernel<float>(int)", "ncdhwToNdhwc"])
def test_conversion_kernels(name: str) -> None:
    assert is_conversion(name)


@pytest.mark.parametrize(
    "name",
    [
        CONVOLUTION,
        "max_pool_forward_nchw",
        "cutlass__5x_cudnn::Kernel<cutlass_tensorop_nhwc_align8>",
        "nhwcToNhwcPadding",
    ],
)
def test_kernels_that_only_mention_a_layout(name: str) -> None:
    assert not is_conversion(name)


def test_a_forward_converts_input_and_weight_and_its_result_back() -> None:
    call = ConvolutionOperands("aten::convolution", (IMAGE, WEIGHT), 4, RESULT)
    found = find_conversions([TO_NHWC, TO_NHWC, CONVOLUTION, TO_NCHW], call)
    assert [(c.role, c.operand, c.shape) for c in found] == [
        ("input", 0, IMAGE),
        ("weight", 1, WEIGHT),
        ("output", None, RESULT),
    ]
    assert (found[0].source, found[0].target) == ("nchw", "nhwc")


def test_a_backward_writes_two_gradients() -> None:
    call = ConvolutionOperands("aten::convolution_backward", (RESULT, IMAGE, WEIGHT), 2, None)
    found = find_conversions([TO_NHWC, TO_NHWC, TO_NCHW, TO_NHWC, TO_NHWC, TO_NCHW], call)
    assert [(c.role, c.operand) for c in found] == [
        ("input", 0),
        ("weight", 2),
        ("output", None),
        ("input", 1),
        ("input", 0),
        ("weight", None),
    ]
    assert (found[2].shape, found[5].shape) == (IMAGE, WEIGHT)


def test_unattributable_conversions_are_left_out() -> None:
    call = ConvolutionOperands("aten::convolution", (IMAGE, WEIGHT), 4, None)
    assert find_conversions([TO_NCHW], call) == ()
    assert len(find_conversions([TO_NHWC, TO_NHWC, TO_NHWC], call)) == 2


@pytest.mark.parametrize(
    ("source", "weight", "settings"),
    [
        ((2, 8, 20), (16, 8, 3), ([2], [1], [1], False, [0], 1)),
        ((2, 8, 20, 21), (16, 4, 3, 5), ([2, 1], [1, 2], [2, 1], False, [0, 0], 2)),
        ((2, 8, 9, 10, 11), (4, 8, 1, 2, 3), ([1, 1, 1], [0, 0, 0], [1, 1, 1], False, [0, 0, 0], 1)),
        ((2, 8, 9, 10), (8, 6, 3, 3), ([2, 2], [1, 1], [1, 2], True, [1, 0], 2)),
    ],
)
def test_the_shape_of_a_result_is_torchs_own(source: tuple[int, ...], weight: tuple[int, ...], settings: tuple) -> None:
    with torch.device("meta"):
        real = torch.ops.aten.convolution.default(torch.empty(source), torch.empty(weight), None, *settings)
    assert compute_convolution_output([source, weight], [None, None, None, *settings]) == tuple(real.shape)


def test_arguments_that_were_not_recorded() -> None:
    assert compute_convolution_output([IMAGE, WEIGHT], []) is None
    assert compute_convolution_output([IMAGE, WEIGHT], [None] * 9) is None
