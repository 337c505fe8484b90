import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.capture.gradient_strides import correct_weight_gradients

FORMATS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("shape", [(1, 8, 3, 3), (1, 8, 1, 2), (2, 8, 3, 3), (1, 8, 60, 60), (1, 1, 5, 5)], ids=str)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("image_format", FORMATS, ids=str)
@pytest.mark.parametrize("weight_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_fake_gradient_strides_match_the_kernel(
    shape, kernel: int, image_format, weight_format, dtype: torch.dtype, transposed: bool
) -> None:
    make = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = make(shape[1], 6, kernel, padding=kernel // 2, bias=False, dtype=dtype).to(memory_format=weight_format)
    image = torch.randn(shape, dtype=dtype).to(memory_format=image_format)

    def gradients(image, weight, gradient):
        return torch.ops.aten.convolution_backward.default(
            gradient, image, weight, None, [1, 1], [kernel // 2] * 2, [1, 1], transposed, [0, 0], 1, [True, True, False]
        )[:2]

    given = (image, layer.weight.detach(), torch.randn_like(layer(image).detach()))
    traced = make_fx(gradients, tracing_mode="fake")(*given)
    correct_weight_gradients(traced.graph)
    (returned,) = traced.graph.output_node().args
    said = [node.meta["val"].stride() for node in returned]
    assert said == [gradient.stride() for gradient in gradients(*given)]
