"""Inputs whose strides change: which are pinned, which must not be, and that nobody can tell."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import frx_graph
from frx_graph import backend
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.records import Candidate

pytestmark = [
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.usefixtures("nothing_compiled"),
]

PLAIN = torch.randn(2, 3, 8, 10)
LAST = PLAIN.contiguous(memory_format=torch.channels_last)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.convolution(x))).mean((2, 3))


class Program(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.kept: list[Any] = []
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(2, 3, 8, 10))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def compiled(model: nn.Module, inner: str = "eager", **how: Any) -> Any:
    return frx_graph.compile(model, options={"plan": "all", "inner": inner}, **how)


def told() -> list[RewrittenGraph]:
    return [
        done
        for done in backend.rewritten()
        if any(candidate.rewrite == "pin_strides" for candidate in done.applied)
        or any(refusal.subject == "pin_strides" for refusal in done.refused)
    ]


def pins() -> list[Candidate]:
    return [candidate for done in told() for candidate in done.applied]


def reasons() -> list[str]:
    return [refusal.reason for done in told() for refusal in done.refused]


def strides(value: Any) -> list[tuple[int, ...]]:
    return [leaf.stride() for leaf in pytree.tree_leaves(value)]


@pytest.mark.integration
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_the_second_layout_compiles_nothing(inner: str, train: bool) -> None:
    model = Classifier().train(train)
    twin = copy.deepcopy(model)
    program = compiled(model, inner)
    with torch.set_grad_enabled(train):
        program(PLAIN)
        twin(PLAIN)
        with torch.compiler.set_stance("fail_on_recompile"):
            for image in (LAST, PLAIN, LAST):
                ours, own = program(image), twin(image)
                torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)
                assert strides(ours) == strides(own)
                if train:
                    ours.square().mean().backward()
                    own.square().mean().backward()
    for ours, own in zip(model.parameters(), twin.parameters(), strict=True):
        if train:
            torch.testing.assert_close(ours.grad, own.grad, rtol=1e-3, atol=1e-4)
    for ours, own in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)
    (pin,) = pins()
    assert (pin.nodes, pin.choices) == (("args[0]",), ("0,1,2,3",))
    assert reasons() == []


@pytest.mark.integration
def test_the_layout_that_came_first_stays() -> None:
    program = compiled(Classifier().eval())
    with torch.no_grad():
        program(LAST)
        with torch.compiler.set_stance("fail_on_recompile"):
            program(PLAIN)
    assert [pin.choices for pin in pins()] == [("0,2,3,1",)]


@pytest.mark.integration
def test_one_layout_is_left_alone() -> None:
    program = compiled(Classifier().eval())
    with torch.no_grad():
        program(PLAIN)
        program(PLAIN.clone())
        program(torch.randn(2, 3, 12, 12))
    assert told() == []


@pytest.mark.integration
def test_keyword_arguments_and_tuples_are_pinned_too() -> None:
    program = compiled(Program(lambda self, *, pair, x: (pair[0] * pair[1] * x).sum()))
    with torch.no_grad():
        expected = program(pair=(PLAIN, PLAIN), x=PLAIN)
        with torch.compiler.set_stance("fail_on_recompile"):
            torch.testing.assert_close(program(pair=(LAST, LAST), x=LAST), expected)
            torch.testing.assert_close(program(pair=(PLAIN, PLAIN), x=PLAIN), expected)
    assert {pin.nodes for pin in pins()} == {("kwargs['pair'][0]",), ("kwargs['pair'][1]",), ("kwargs['x']",)}


@pytest.mark.integration
@pytest.mark.parametrize("leaf", [True, False])
def test_gradients_reach_the_input(leaf: bool) -> None:
    program = compiled(Classifier().eval())
    with torch.no_grad():
        program(PLAIN)

    def gradient(model: Any, values: Tensor) -> Tensor:
        given = values.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        model(given if leaf else given * 1).square().sum().backward()
        return given.grad

    gradient(program, PLAIN)
    with torch.compiler.set_stance("fail_on_recompile"):
        ours = gradient(program, LAST)
    own = gradient(Classifier().eval(), LAST)
    torch.testing.assert_close(ours, own, rtol=1e-3, atol=1e-4)
    assert ours.stride() == own.stride()
    assert len(pins()) == 1


@torch.library.custom_op("frx_tests_pinning::first_in_memory", mutates_args=())
def _first_in_memory(x: Tensor) -> Tensor:
    return x.as_strided((4,), (1,)).clone()


@_first_in_memory.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(4)


def _in_last(x: Tensor) -> Tensor:
    """A view of an image in channels-last, a copy of a plain one."""
    return x.permute(0, 2, 3, 1).reshape(-1)


def _written_behind(x: Tensor) -> Tensor:
    y = x * 1
    y.contiguous().clamp_(max=0.5)
    return y.sum()


def _twice(y: Tensor) -> tuple[Tensor, Tensor]:
    return y.reshape(-1), y.reshape(len(y), -1)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "written": (lambda self, x: x.add_(1).sum(), "writes into it"),
    "written through a view": (lambda self, x: x[0].mul_(2).sum(), "writes into it"),
    "written through .data": (lambda self, x: x.data.mul_(2).sum(), "writes into it"),
    "returned": (lambda self, x: (x, x.sum()), "returns it"),
    "returned as a view": (lambda self, x: x[:, 1:], "returns it"),
    "written or not": (lambda self, x: (_in_last(x).clamp_(max=0.5), x.sum())[1], "shares memory by the strides"),
    "written behind": (lambda self, x: _written_behind(x), "shares memory by the strides"),
    "returned or not": (lambda self, x: (_in_last(x), x.sum()), "shares memory by the strides"),
    "one memory or two": (lambda self, x: _twice(x * 1), "shares memory by the strides"),
    "kept": (lambda self, x: (self.kept.append(x), x.sum())[1], "keeps it"),
    "asked whether it is plain": (lambda self, x: x.sum() * (1.0 if x.is_contiguous() else 2.0), "something else"),
    "asked for a stride": (lambda self, x: x.sum() * x.stride(1), "something else"),
    "asked for a stride behind": (lambda self, x: x.sum() * (x * self.scale).stride(1), "something else"),
    "told places": (lambda self, x: x.sum() + x.as_strided((4,), (1,)), "something else"),
    "told places behind": (lambda self, x: x.sum() + (x * self.scale).as_strided((4,), (1,)), "something else"),
    "an unknown operator": (lambda self, x: x.sum() + _first_in_memory(x), "something else"),
    "an unknown operator behind": (lambda self, x: x.sum() + _first_in_memory((x * self.scale).detach()), "something"),
    "outputs follow": (lambda self, x: x + 1, "follow those of the input"),
}


@pytest.mark.integration
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("train", [False, True])
def test_what_a_copy_would_change_is_refused(case: str, train: bool) -> None:
    function, reason = REFUSED[case]
    program, twin = compiled(Program(function)), Program(function)
    with torch.set_grad_enabled(train):
        for image in (PLAIN, LAST, PLAIN, LAST):
            given, own = (image.clone(memory_format=torch.preserve_format) for _ in range(2))
            ours, expected = program(given), twin(own)
            torch.testing.assert_close(ours, expected)
            torch.testing.assert_close(given, own)
            assert strides(ours) == strides(expected)
            memories = [leaf.untyped_storage().data_ptr() for leaf in pytree.tree_leaves((ours, program.kept))]
            own_memories = [leaf.untyped_storage().data_ptr() for leaf in pytree.tree_leaves((expected, twin.kept))]
            shares = given.untyped_storage().data_ptr() in memories
            assert shares == (own.untyped_storage().data_ptr() in own_memories)
    assert pins() == []
    assert any(reason in told for told in reasons()), reasons()


@pytest.mark.integration
def test_gaps_are_no_layout() -> None:
    program = compiled(Program(lambda self, x: x.sum()))
    with torch.no_grad():
        program(PLAIN)
        wide = torch.randn(2, 3, 8, 20)[..., ::2]
        torch.testing.assert_close(program(wide), wide.sum())
        flat = torch.randn(3, 1, 1).expand(2, 3, 8, 10)
        torch.testing.assert_close(program(flat), flat.sum())
    assert pins() == []
    assert "gaps or overlaps" in reasons()[0]


@pytest.mark.integration
def test_what_lies_in_a_list_stays_there() -> None:
    program = compiled(Program(lambda self, xs: xs[0].sum()))
    with torch.no_grad():
        program([PLAIN])
        program([LAST])
    assert pins() == []
    assert "in a list or a dictionary" in reasons()[0]


@pytest.mark.integration
@pytest.mark.parametrize("change", [lambda xs: xs.append(xs[0] + 1), lambda xs: xs.pop()])
def test_a_list_may_be_changed(change: Callable[[list[Tensor]], object]) -> None:
    def program(self: Program, xs: list[Tensor]) -> Tensor:
        total = xs[0].sum()
        change(xs)
        return total

    pinned = compiled(Program(program))
    with torch.no_grad():
        for image in (PLAIN, LAST):
            given = [image, image * 2]
            torch.testing.assert_close(pinned(given), image.sum())
            assert len(given) != 2
    assert pins() == []


def test_a_program_in_pieces_is_not_pinned() -> None:
    def broken(self: Program, x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y.sum()

    program = compiled(Program(broken))
    with torch.no_grad():
        program(PLAIN)
        torch.testing.assert_close(program(LAST), LAST.sum() * 2)
    assert pins() == []
    assert "not captured in one graph" in reasons()[0]


def test_hooks_see_what_was_given() -> None:
    model = Program(lambda self, x: x.sum())
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    program = compiled(model)
    with torch.no_grad():
        program(PLAIN)
        program(LAST)
    assert seen[-1] is LAST
    assert pins() == []


@pytest.mark.integration
def test_a_hook_that_comes_later_sees_what_was_given() -> None:
    model = Program(lambda self, x: x.sum())
    program = compiled(model)
    seen: list[Tensor] = []
    with torch.no_grad():
        program(PLAIN)
        program(LAST)
        assert len(pins()) == 1
        model.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        program(LAST)
    assert seen == [LAST] or seen[0] is LAST


def test_memory_that_the_program_writes_under_another_name_is_not_copied() -> None:
    """The graph reads the input after it has written into a buffer, which is the input."""

    def count(self: Program, x: Tensor) -> Tensor:
        self.seen.add_(1)
        return (x * 2).sum()

    model = Program(count)
    program = compiled(model)
    with torch.no_grad():
        program(PLAIN)
        program(LAST)
        assert len(pins()) == 1
        seen = model.seen.permute(1, 0, 2, 3).reshape(3, 2, 8, 10)
        twin = copy.deepcopy(model)
        same = torch.as_strided(model.seen, (2, 3, 8, 10), LAST.stride())
        twins = torch.as_strided(twin.seen, (2, 3, 8, 10), LAST.stride())
        del seen
        torch.testing.assert_close(program(same), twin(twins))


@pytest.mark.parametrize("broken", [False, True])
def test_a_state_that_writes_gets_its_write_and_ends_the_pinning(broken: bool) -> None:
    """The same call, but the program is another: its first run is not on a copy, or is put right."""

    def either(self: Program, x: Tensor) -> Tensor:
        if self.writes:
            if broken:
                torch._dynamo.graph_break()
            x.add_(1)
        return x.sum()

    model = Program(either)
    model.writes = False
    program = compiled(model)
    with torch.no_grad():
        program(PLAIN)
        program(LAST)
        assert len(pins()) == 1
        model.writes = True
        for _ in range(2):
            image = LAST.clone(memory_format=torch.preserve_format)
            program(image)
            torch.testing.assert_close(image, LAST + 1)
    assert any("reasons of its own" in reason for reason in reasons())


@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.integration)])
@pytest.mark.parametrize("train", [False, True])
def test_a_state_that_reads_strides_reads_those_that_were_given(inner: str, train: bool) -> None:
    def either(self: Program, x: Tensor) -> Tensor:
        y = x.mean((2, 3)) * self.scale
        if self.reads and not x.is_contiguous():
            y = y * 100
        return y

    model = Program(either)
    model.reads = False
    program = compiled(model, inner)
    with torch.set_grad_enabled(train):
        program(PLAIN)
        program(LAST)
        assert len(pins()) == 1
        model.reads = True
        for image, factor in ((LAST, 100), (LAST, 100), (PLAIN, 1)):
            torch.testing.assert_close(program(image).detach(), PLAIN.mean((2, 3)) * factor, rtol=1e-4, atol=1e-4)
    assert any("reasons of its own" in reason for reason in reasons())


def test_where_dynamo_keeps_errors_to_itself_nothing_is_copied() -> None:
    model = Program(lambda self, x: x * 2 if self.writes else x.sum() * self.scale)
    model.writes = False
    program = compiled(model)
    with torch.no_grad():
        program(PLAIN)
        program(LAST)
        assert len(pins()) == 1
        model.writes = True
        with torch._dynamo.config.patch(suppress_errors=True):
            assert program(LAST).stride() == (LAST * 2).stride()


def test_without_a_plan_nothing_is_pinned() -> None:
    program = frx_graph.compile(Program(lambda self, x: x.sum()), options={"inner": "eager"})
    with torch.no_grad():
        program(PLAIN)
        program(LAST)
    assert told() == []


@pytest.mark.integration
def test_what_hangs_on_a_tensor_stays_there() -> None:
    program = compiled(Program(lambda self, x: x.sum() * x.times))
    with torch.no_grad():
        for image in (PLAIN.clone(), LAST.clone(memory_format=torch.preserve_format)):
            image.times = 3
            torch.testing.assert_close(program(image), PLAIN.sum() * 3, rtol=1e-4, atol=1e-4)


@pytest.mark.integration
def test_marks_for_dynamo_are_nothing_that_a_copy_lacks() -> None:
    program = compiled(Classifier().eval())
    with torch.no_grad():
        for image in (PLAIN.clone(), LAST.clone(memory_format=torch.preserve_format)):
            torch._dynamo.mark_dynamic(image, 2)
            program(image)
        image = LAST.clone(memory_format=torch.preserve_format)
        torch._dynamo.mark_dynamic(image, 2)
        with torch.compiler.set_stance("fail_on_recompile"):
            program(image)
    assert len(pins()) == 1


def test_a_graph_that_fails_while_it_is_looked_at_leaves_gradients_on() -> None:
    def views(self: Program, x: Tensor) -> Tensor:
        with torch.no_grad():
            total = x.view(2, -1).sum()
        return (x * self.scale).sum() + total

    program = compiled(Program(views))
    program(PLAIN)
    with pytest.raises(Exception, match="view"):
        program(LAST)
    assert torch.is_grad_enabled()


def test_random_numbers_are_drawn_as_they_would_be() -> None:
    def dropped(self: Program, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, True).flatten(2).sum(2)

    program, twin = compiled(Program(dropped)), Program(dropped)
    for image in (PLAIN, LAST, PLAIN):
        torch.manual_seed(0)
        ours = program(image)
        torch.manual_seed(0)
        torch.testing.assert_close(ours, twin(image))
    assert pins() == []
    assert any("random numbers" in reason for reason in reasons())


def test_whether_strides_may_be_pinned_is_asked_without_running_the_program() -> None:
    calls: list[int] = []

    def counting(self: Program, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            calls.append(1)
        return torch.relu(x * next(self.numbers)).mean((2, 3))

    model, twin = Program(counting), Program(counting)
    model.numbers, twin.numbers = iter(range(1, 9)), iter(range(1, 9))
    program = compiled(model)
    with torch.no_grad():
        for image in (PLAIN, LAST, PLAIN):
            expected = twin(image)
            calls.clear()
            torch.testing.assert_close(program(image), expected)
            assert calls == []
    assert pins() or reasons()
