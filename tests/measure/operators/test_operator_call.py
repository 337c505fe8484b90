import torch

from frx_graph.measure.operators.operator_call import isolated


def test_operators_run_in_the_type_that_they_are_given() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        with isolated([]):
            assert torch.ops.aten.mm.default(x, x).dtype is torch.float32
        assert torch.ops.aten.mm.default(x, x).dtype is torch.bfloat16
