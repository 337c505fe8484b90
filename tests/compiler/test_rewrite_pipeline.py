import pytest
import torch
from torch import fx

from frx_graph.compiler.rewrite_pipeline import rollback_on_error


def module() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: torch.relu(x + 1))


def spoilt(traced: fx.GraphModule) -> None:
    (relu,) = traced.graph.find_nodes(op="call_function", target=torch.relu)
    relu.target = torch.tanh
    traced.recompile()


def test_a_change_that_fails_leaves_no_trace() -> None:
    traced = module()
    names = [node.name for node in traced.graph.nodes]
    with pytest.raises(ZeroDivisionError), rollback_on_error(traced):
        spoilt(traced)
        raise ZeroDivisionError
    assert [node.name for node in traced.graph.nodes] == names
    assert traced.graph.owning_module is traced
    x = torch.randn(3)
    assert torch.equal(traced(x), torch.relu(x + 1))


def test_a_change_that_does_not_fail_stays() -> None:
    traced = module()
    with rollback_on_error(traced):
        spoilt(traced)
    x = torch.randn(3)
    assert torch.equal(traced(x), torch.tanh(x + 1))
