from __future__ import annotations

import pytest
import torch

from frx_graph.ops.onednn_linear import TARGET, has_onednn

product = torch.ops.frx_graph.product


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("shape", [(4, 2, 36), (4, 1, 36), (2, 4, 5), (1, 4, 5), (4, 4, 1), (1, 1, 1)])
@pytest.mark.parametrize(
    "strides",
    [None, (1, 1), (9, 1), (1, 9), (0, 1), (1, 0), (0, 0), (2, 8), (3, 2), (2, 3)],
    ids=lambda strides: str(strides or "transposed"),
)
def test_weights_may_have_any_strides(shape: tuple[int, int, int], strides: tuple[int, int] | None) -> None:
    """Also where their rows share memory, as the windows of an image do."""
    m, k, n = shape
    x, memory = torch.randn(m, k), torch.randn(2000)
    w = memory.as_strided((n, k), strides or (1, n)).t()
    torch.testing.assert_close(product(x, w, None), x @ w, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("stride", [0, 1, 2])
def test_bias_may_have_any_strides(stride: int) -> None:
    x, w, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(10).as_strided((5,), (stride,))
    torch.testing.assert_close(product(x, w, bias), torch.addmm(bias, x, w), rtol=1e-4, atol=1e-5)


def test_its_name_is_that_of_records() -> None:
    assert str(product.default) == TARGET
