import pytest
from torch import Tensor, nn, zeros

from frx_graph.measure.operators.operator_tagger import ModuleStack


class Reporting(nn.Module):
    """Notes the path while it runs."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.stack: ModuleStack | None = None
        self.seen: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        assert self.stack is not None
        self.seen.append(self.stack.path)
        if self.inner is not None:
            x = self.inner(x)
            self.seen.append(self.stack.path)
        return x


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ArithmeticError


def test_paths_follow_the_running_module() -> None:
    leaf = Reporting()
    root = Reporting(nn.Sequential(nn.Identity(), leaf))
    stack = ModuleStack(root)
    root.stack = leaf.stack = stack
    with stack:
        assert stack.path == ""
        root(zeros(1))
        assert stack.path == ""
    assert root.seen == ["model", "model"]
    assert leaf.seen == ["model.inner.1"]
    root(zeros(1))
    assert leaf.seen == ["model.inner.1", ""]
    assert not root._forward_pre_hooks and not leaf._forward_hooks


def test_a_module_that_raises_is_left_all_the_same() -> None:
    root = nn.Sequential(Failing())
    with ModuleStack(root, root="net") as stack:
        with pytest.raises(ArithmeticError):
            root(zeros(1))
        assert stack.path == ""


def test_without_a_module_there_is_no_path() -> None:
    with ModuleStack(None) as stack:
        assert stack.path == ""
