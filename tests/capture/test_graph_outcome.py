import threading

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.convert_frame import compile_lock

from frx_graph.capture.graph_outcome import graph_inputs, graph_outcome, node_values

IMAGE = torch.randn(2, 3, 4, 4)


def outcome(function, *inputs: object):
    return graph_outcome(fx.symbolic_trace(function), graph_inputs(inputs))


def test_writes_are_found_however_they_are_written() -> None:
    def writes(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> Tensor:
        a.add_(1)
        b.data.mul_(2)
        c[0].zero_()
        d.t_()
        return a + b + e

    square = torch.zeros(3, 3)
    found = outcome(writes, *(square.clone() for _ in range(5)))
    assert found.written == {0, 1, 2, 3}
    assert found.returned == frozenset()


def test_statistics_of_a_batch_are_written() -> None:
    def normalised(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, mean, variance, training=True)

    assert outcome(normalised, IMAGE, torch.zeros(3), torch.ones(3)).written == {1, 2}


def test_what_is_computed_from_an_input_is_not_it() -> None:
    found = outcome(lambda x: (x + 1).add_(1), IMAGE)
    assert (found.written, found.returned, found.shared) == (frozenset(), frozenset(), frozenset())
    assert found.strides == (IMAGE.stride(),)


def test_views_of_inputs_and_of_each_other_are_told_apart() -> None:
    def views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = y + 1
        return x[1:], z, z.t(), y * 2

    found = outcome(views, torch.zeros(3, 3), torch.zeros(3, 3))
    assert found.returned == {0}
    assert found.shared == {0, 1, 2}
    assert found.strides == ((3, 1), (3, 1), (1, 3), (3, 1))
    assert found.shapes == ((2, 3), (3, 3), (3, 3), (3, 3))


def test_strides_are_those_of_the_inputs_that_are_given() -> None:
    last = IMAGE.contiguous(memory_format=torch.channels_last)
    assert outcome(lambda x: x * 2, last).strides == (last.stride(),)


def test_no_values_are_read_and_none_are_kept() -> None:
    weight = nn.Parameter(torch.ones(3))
    (kept,) = graph_inputs((weight,))
    assert (kept.identity, kept.parameter, kept.requires_grad) == (id(weight), True, True)
    assert not any(isinstance(getattr(kept, name), Tensor) for name in kept.__slots__)


def test_every_value_lies_in_the_memory_that_it_views() -> None:
    module = fx.symbolic_trace(lambda x: (x + 1).transpose(0, 1) * 2)
    values = list(node_values(module, graph_inputs((torch.zeros(2, 3),))).values())
    placeholder, added, transposed, product = values
    assert added.memory == transposed.memory
    assert len({value.memory for value in (placeholder, added, product)}) == 3
    assert (added.strides, transposed.strides) == ((3, 1), (1, 3))
    assert (placeholder.operators, added.operators) == (frozenset(), {torch.ops.aten.add.Tensor})


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "image",
    [
        *(torch.randn(batch, 6, 4, 5).to(memory_format=torch.channels_last) for batch in (1, 2)),
        torch.randn(1, 6, 2, 4, 5).to(memory_format=torch.channels_last_3d),
        torch.randn(1, 6, 4, 5),
        torch.randn(2, 2, 4, 5)[:, :1].as_strided((2, 1, 4, 5), (20, 1, 5, 1)),
        torch.randn(1, 6, 4),
    ],
)
def test_normed_groups_of_one_image_lie_as_they_do(image: Tensor, gradients: bool) -> None:
    module = fx.symbolic_trace(lambda x: nn.functional.group_norm(x, 1) * 2)
    given = image.clone().requires_grad_(gradients)
    inputs = graph_inputs((given,))
    real = module(given).stride()
    assert graph_outcome(module, inputs).strides == (real,)
    assert [value.strides for value in node_values(module, inputs).values()][-1] == real


@pytest.mark.parametrize(
    ("function", "draws"),
    [
        (lambda x: nn.functional.dropout(x, 0.5, True), True),
        (lambda x: nn.functional.dropout(x, 0.5, False), False),
        (lambda x: torch.rand_like(x), True),
        (lambda x: x + torch.rand(3, 4, 4), False),
    ],
)
def test_numbers_that_are_drawn_for_a_tensor_are_found(function, draws: bool) -> None:
    assert outcome(function, IMAGE).draws is draws


def test_what_the_graph_holds_itself_is_written_on_fakes() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.steps.add_(1)

    class Tracer(fx.Tracer):
        proxy_buffer_attributes = True

    counting = Counting()
    module = fx.GraphModule(counting, Tracer().trace(counting))
    steps = module.steps
    found = graph_outcome(module, graph_inputs((IMAGE,)))
    assert (found.writes_held, found.written) == (True, frozenset())
    assert module.steps is steps
    assert (float(steps), steps._version) == (0, 0)
    assert not graph_outcome(fx.symbolic_trace(nn.Linear(4, 4)), graph_inputs((IMAGE,))).writes_held


@pytest.mark.parametrize("run", [graph_outcome, node_values])
def test_no_other_thread_compiles_meanwhile(run) -> None:
    """What it traces would be attributed to nodes of ours (`torch.fx.traceback`)."""
    compiles: list[bool] = []

    def compile_elsewhere() -> None:
        with_lock = compile_lock.acquire(blocking=False)
        compiles.append(with_lock)
        if with_lock:
            compile_lock.release()

    def ask(x: Tensor) -> Tensor:
        thread = threading.Thread(target=compile_elsewhere)
        thread.start()
        thread.join()
        return x + 1

    graph = fx.Graph()
    graph.output(graph.call_function(ask, (graph.placeholder("x"),)))
    run(fx.GraphModule(nn.Module(), graph), graph_inputs((IMAGE,)))
    assert compiles == [False]
