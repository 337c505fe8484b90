"""The option `pin_strides`: which inputs are copied to the strides of the first call, and which are left alone."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph import backend
from frx_graph.errors import OptionError
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

    def forward(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        return self.function(x, y, **kwargs)


def compiled(model: Any, pins: bool | list[str] = True, **options: Any) -> Any:
    return frx_graph.compile(model, options={"inner": "eager", "pin_strides": pins, **options})


def pins() -> list[Candidate]:
    return [each for done in backend.rewritten() for each in done.applied if each.rewrite == "pin_strides"]


def reasons() -> list[str]:
    return [each.reason for done in backend.rewritten() for each in done.refused if each.subject == "pin_strides"]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("options", [{}, {"plan": "all"}, {"plan": "all", "freeze": True}], ids=str)
def test_the_second_layout_compiles_nothing(options: dict[str, Any], train: bool) -> None:
    model = Classifier().train(train)
    twin = copy.deepcopy(model)
    program = compiled(model, **options)
    with torch.set_grad_enabled(train):
        program(PLAIN)
        twin(PLAIN)
        with torch.compiler.set_stance("fail_on_recompile"):
            for image in (LAST, PLAIN, LAST):
                ours, own = program(image), twin(image)
                torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)
                if train:
                    ours.square().mean().backward()
                    own.square().mean().backward()
    for ours, own in zip(model.parameters(), twin.parameters(), strict=True):
        if train:
            torch.testing.assert_close(ours.grad, own.grad, rtol=1e-3, atol=1e-4)
    (pin,) = pins()
    assert (pin.nodes, pin.choices) == (("x",), ("0,1,2,3",))
    assert reasons() == []


def test_without_the_option_inputs_stay_as_they_are() -> None:
    seen: list[tuple[int, ...]] = []
    program = compiled(Program(lambda x, _: (seen.append(x.stride()), x.sum())[1]), pins=False, plan="all")
    for image in (PLAIN, LAST):
        program(image)
    assert seen == [PLAIN.stride(), LAST.stride()]
    assert pins() == []


def test_the_layout_that_came_first_stays_for_other_sizes_too() -> None:
    seen: list[tuple[int, ...]] = []
    program = compiled(Program(lambda x, _: (seen.append(x.stride()), x.sum())[1]))
    for image in (LAST, PLAIN, torch.randn(4, 3, 5, 5)):
        program(image)
    assert seen == [LAST.stride(), LAST.stride(), (75, 1, 15, 3)]
    assert [pin.choices for pin in pins()] == [("0,2,3,1",)]


def test_named_arguments_are_pinned_however_they_are_passed() -> None:
    seen: list[tuple[bool, ...]] = []

    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        seen.append(tuple(value.is_contiguous() for value in (x, y, z)))
        return x + y + z

    program = compiled(Program(function), ["x", "y"])
    for image in (PLAIN, LAST):
        program(image, y=image.clone(), z=image.clone())
    program(x=LAST, y=LAST.clone(), z=LAST.clone())
    assert seen == [(True, True, True), (True, True, False), (True, True, False)]
    assert {pin.nodes for pin in pins()} == {("x",), ("y",)}


def test_a_function_is_pinned_as_a_model_is() -> None:
    def function(*images: Tensor) -> Tensor:
        return sum(image.sum() * image.stride(1) for image in images)  # type: ignore[return-value]

    program = compiled(function, ["images"])
    expected = program(PLAIN, PLAIN.clone())
    torch.testing.assert_close(program(PLAIN, LAST), expected)
    assert {pin.nodes for pin in pins()} == {("images[1]",)}


@pytest.mark.parametrize("options", [{"pin_strides": ["image"]}, {"pin_strides": "x"}, {"pin_strides": 1}], ids=str)
def test_unknown_argument_name_is_refused_before_the_first_call(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="pin_strides"):
        frx_graph.compile(Classifier(), options={"inner": "eager", **options})


def test_the_backend_by_itself_cannot_pin() -> None:
    with pytest.raises(Exception, match="guards run before it is called"):
        torch.compile(Classifier(), backend="frx", options={"pin_strides": True})(PLAIN)


@pytest.mark.parametrize("leaf", [True, False])
def test_gradients_reach_the_input(leaf: bool) -> None:
    program = compiled(Classifier().eval(), plan="all")

    def gradient(model: Any, values: Tensor) -> Tensor:
        given = values.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        model(given if leaf else given * 1).square().sum().backward()
        return given.grad

    gradient(program, PLAIN)
    ours, own = gradient(program, LAST), gradient(Classifier().eval(), LAST)
    torch.testing.assert_close(ours, own, rtol=1e-3, atol=1e-4)
    assert ours.stride() == own.stride()
    assert len(pins()) == 1


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_write_into_a_copy_is_written_back_and_ends_the_pinning(mode: Callable[[], Any]) -> None:
    program = compiled(Program(lambda x, writes: x.add_(1).sum() if writes else x.sum()))
    # Tensors that are made in inference mode are not pinned.
    first, *images = PLAIN.clone(), *(LAST.clone(memory_format=torch.preserve_format) for _ in range(2))
    with mode():
        program(first)
        for image in images:
            program(image, True)
            torch.testing.assert_close(image, LAST + 1)
    assert len(pins()) == 1
    assert reasons() == ["the program writes into it"]


def test_an_input_that_is_written_in_the_first_call_is_not_pinned() -> None:
    program = compiled(Program(lambda x, _: x.mul_(2).sum()))
    for image in (PLAIN.clone(), LAST.clone(memory_format=torch.preserve_format)):
        before = image.clone()
        program(image)
        torch.testing.assert_close(image, before * 2)
    assert (pins(), reasons()) == ([], ["the program writes into it"])


def test_a_write_before_an_error_is_written_back() -> None:
    def function(x: Tensor, fails: bool) -> Tensor:
        if fails:
            x.add_(1)
            raise ZeroDivisionError
        return x.sum()

    program = compiled(Program(torch._dynamo.disable(function)))
    program(PLAIN, False)
    image = LAST.clone(memory_format=torch.preserve_format)
    with pytest.raises(ZeroDivisionError):
        program(image, True)
    torch.testing.assert_close(image, LAST + 1)


def test_arguments_that_share_memory_are_left_as_they_are() -> None:
    program = compiled(Program(lambda x, y: (x.mul_(2), y.sum())[1]))
    program(PLAIN.clone(), PLAIN.clone())
    image = LAST.clone(memory_format=torch.preserve_format)
    torch.testing.assert_close(program(image[:], image), LAST.sum() * 2, rtol=1e-4, atol=1e-4)
    assert "it shares its memory with another argument" in reasons()


LEFT: dict[str, Callable[[Tensor], Any]] = {
    "in a list": lambda image: [image],
    "in a tuple": lambda image: (image,),
    "with gaps": lambda image: torch.cat([image, image], 3)[..., ::2],
    "expanded": lambda image: image[:1].expand(2, 3, 8, 10),
    "complex": lambda image: image.to(torch.complex64),
    "a parameter": nn.Parameter,
}


@pytest.mark.parametrize("case", LEFT)
def test_non_plain_argument_is_left_unchanged(case: str) -> None:
    seen: list[Any] = []
    program = compiled(Program(torch._dynamo.disable(lambda x, _: seen.append(x))))
    for image in (PLAIN, LAST):
        given = LEFT[case](image)
        program(given)
        assert seen[-1] is given
    assert pins() == []


def test_another_rank_is_left_as_it_is() -> None:
    program = compiled(Program(lambda x, _: x.sum()))
    torch.testing.assert_close(program(PLAIN), PLAIN.sum())
    torch.testing.assert_close(program(PLAIN[0].permute(1, 2, 0)), PLAIN[0].sum())
    assert pins() == []


def test_marks_for_dynamo_go_with_the_copy() -> None:
    seen: list[Any] = []
    program = compiled(Program(torch._dynamo.disable(lambda x, _: seen.append(x))))
    program(PLAIN)
    image = LAST.clone(memory_format=torch.preserve_format)
    torch._dynamo.mark_dynamic(image, 0)
    program(image)
    assert seen[-1] is not image
    assert seen[-1]._dynamo_dynamic_indices == {0}
