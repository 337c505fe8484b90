import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.facts.layout import make_contiguous_strides
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec
from frx_graph.measure.operators.operator_inputs import (
    OperandPool,
    build_arguments,
    find_own_overload,
    make_tensor,
    run_on_meta,
)

GENERATOR = torch.Generator().manual_seed(0)


def spec(
    shape: tuple[int, ...], strides: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32
) -> TensorSpec:
    return TensorSpec(shape, make_contiguous_strides(shape) if strides is None else strides, dtype, "cpu")


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=5),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]),
)
def test_shape_strides_and_dtype_are_the_signatures(axes: list[tuple[int, int]], dtype: torch.dtype) -> None:
    wanted = spec(tuple(n for n, _ in axes), tuple(s for _, s in axes), dtype)
    made = make_tensor(wanted, GENERATOR)
    assert (tuple(made.shape), made.stride(), made.dtype) == (wanted.shape, wanted.strides, dtype)


def test_values_are_valid_nearly_everywhere() -> None:
    large = make_tensor(spec((300, 300)), GENERATOR)
    assert large.min() >= 0.5
    assert large.max() < 1
    assert large.unique().numel() > 1000
    assert make_tensor(spec((4,), dtype=torch.int64), GENERATOR).eq(0).all()
    assert make_tensor(spec((4,), dtype=torch.bool), GENERATOR).all()


def test_an_expanded_tensor_overlaps_as_the_real_one_did() -> None:
    made = make_tensor(spec((3, 4), (0, 1)), GENERATOR)
    assert made.untyped_storage().nbytes() == 4 * 4


def test_arguments_of_every_kind() -> None:
    signature = OperatorSignature(
        "aten.cat.default", ((spec((2, 3)), spec((2, 3))), 1), (("dtype", torch.float64), ("pair", (1, 2)))
    )
    args, kwargs = build_arguments(signature)
    assert [tuple(t.shape) for t in args[0]] == [(2, 3), (2, 3)]
    assert args[1:] == [1]
    assert kwargs == {"dtype": torch.float64, "pair": [1, 2]}


def test_overloads_are_found_by_name() -> None:
    assert find_own_overload("aten.sum.dim_IntList") is torch.ops.aten.sum.dim_IntList


@pytest.mark.parametrize(
    "target", ["mylib.op.default", "aten.nothing_like_this.default", "aten.mm.nothing", "relu", ""]
)
def test_what_is_not_run(target: str) -> None:
    with pytest.raises(LookupError):
        find_own_overload(target)


def test_results_without_values() -> None:
    values, indices = run_on_meta(OperatorSignature("aten.topk.default", (spec((4, 8)), 3)))
    assert (values.shape, indices.dtype, values.device.type) == ((4, 3), torch.int64, "meta")


def test_an_operator_that_needs_the_workspace_of_another_call_is_not_made_up() -> None:
    signature = OperatorSignature("aten.mkldnn_rnn_layer_backward.default", (spec((2, 3)),), ())
    with pytest.raises(LookupError, match="workspace"):
        build_arguments(signature)


def test_a_pool_hands_out_one_memory_in_turn_and_grows_for_what_is_larger() -> None:
    pool = OperandPool(nbytes=1024 * 4)
    spec = TensorSpec((4, 100), (100, 1), torch.float32, "cpu")
    first, second, again = (pool.take_tensor(spec) for _ in range(3))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert second.data_ptr() - first.data_ptr() == 448 * 4
    assert again.data_ptr() == first.data_ptr()
    assert torch.equal(first, second) is False
    assert (first >= 0.5).all()
    turned = pool.take_tensor(TensorSpec((100, 4), (1, 100), torch.float32, "cpu"))
    assert turned.stride() == (1, 100)
    assert pool.take_tensor(TensorSpec((2000,), (1,), torch.float32, "cpu")).shape == (2000,)
    assert pool.take_tensor(TensorSpec((3,), (1,), torch.bool, "cpu")).all()
