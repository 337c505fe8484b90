"""Which loops train, and which do not."""

from __future__ import annotations

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper

from frx_graph.instrumentation.training_loop import LoopsFound, TrainingLoop, find_training_loops, get_wrapping_call


def found(source: str) -> LoopsFound:
    return find_training_loops(MetadataWrapper(cst.parse_module(source)))


def only(source: str) -> TrainingLoop:
    (loop,) = found(source).loops
    return loop


STEP = "        loss = model(x)\n        loss.backward()\n        optimizer.step()\n"


@pytest.mark.parametrize(
    ("header", "batch", "step"),
    [
        ("for x in loader:", "x", None),
        ("for x, y in loader:", "(x, y)", None),
        ("for (x, y) in loader:", "(x, y)", None),
        ("for [x, y] in loader:", "[x, y]", None),
        ("for x, *rest in loader:", "(x, *rest)", None),
        ("for step, x in enumerate(loader):", "x", "step"),
        ("for step, (x, y) in enumerate(loader, 1):", "(x, y)", "step"),
        ("for step, x in tqdm(enumerate(loader)):", "x", "step"),
        ("for step, x in enumerate(tqdm.tqdm(loader, total=3)):", "x", "step"),
        ("for _, x in enumerate(loader):", "x", None),
        ("for _ in loader:", None, None),
        ("for pair in enumerate(loader):", None, None),
        ("for step in range(10):", None, "step"),
        ("for step in tqdm(range(10)):", None, "step"),
        ("for x in DataLoader(data, batch_size=4):", "x", None),
    ],
)
def test_batch_and_step(header: str, batch: str | None, step: str | None) -> None:
    loop = only(f"{header}\n    if True:\n{STEP}")
    assert (loop.batch, loop.step) == (batch, step)


def test_the_step_of_an_epoch_is_not_that_of_the_run() -> None:
    loop = only(f"for epoch in range(3):\n    for step, x in enumerate(loader):\n{STEP}")
    assert (loop.line, loop.step) == (2, None)
    loop = only(f"def train_epoch():\n    for step, x in enumerate(loader):\n{STEP}")
    assert loop.step is None
    loop = only(f"if __name__ == '__main__':\n    for step, x in enumerate(loader):\n{STEP}")
    assert loop.step == "step"


TRAINS = {
    "accelerate": "for x in loader:\n    accelerator.backward(model(x))\n    optimizer.step()\n",
    "scaler": "for x in loader:\n    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n",
    "deepspeed": "for x in loader:\n    model_engine.backward(loss)\n    model_engine.step()\n",
    "by hand": "for x in loader:\n    loss.backward()\n    w.data -= w.grad\n",
    "several optimizers": "for x in loader:\n    loss.backward()\n    for opt in optimizers:\n        opt.step()\n",
    "several losses": "for x in loader:\n    for loss in losses:\n        loss.backward()\n    optimizer.step()\n",
    "one of a list": "for x in loader:\n    loss.backward()\n    optimizers[0].step()\n",
    "accumulated": "for i, x in enumerate(loader):\n    loss.backward()\n    if i % 4 == 0:\n        opt.step()\n",
    "micro-batches": "for x in loader:\n    for part in x.split(4):\n        model(part).backward()\n    opt.step()\n",
    "critic": "for x in loader:\n    for _ in range(5):\n        d_opt.step()\n    g_opt.step()\n",
    "closure": "for x in loader:\n    def closure():\n        model(x).backward()\n    optimizer.step(closure)\n",
    "a function": "def train_step(x):\n    model(x).backward()\n    opt.step()\nfor x in loader:\n    train_step(x)\n",
    "a method": (
        "class Task:\n    def one(self, x):\n        self.model(x).backward()\n        self.opt.step()\n"
        "    def fit(self):\n        for x in self.loader:\n            self.one(x)\n"
    ),
    "asynchronous": "async def main():\n    async for x in loader:\n        loss.backward()\n        opt.step()\n",
    "in an endless one": "while True:\n    for x in loader:\n        loss.backward()\n        optimizer.step()\n",
    "a rest after the epoch": (
        "for epoch in range(3):\n    for x in loader:\n        loss.backward()\n        optimizer.step()\n"
        "    optimizer.step()\n"
    ),
}


@pytest.mark.parametrize("source", TRAINS.values(), ids=TRAINS.keys())
def test_it_trains(source: str) -> None:
    loop = only(source)
    assert loop.over_batches
    assert found(source).left == ()


DOES_NOT = {
    "evaluation": "for x in loader:\n    with torch.no_grad():\n        total += loss(model(x))\n",
    "a schedule": "for epoch in range(3):\n    scheduler.step()\n",
    "a profiler": "for x in loader:\n    model(x)\n    prof.step()\n",
    "an environment": "for action in actions:\n    env.step(action)\n",
    "no loop": "loss.backward()\noptimizer.step()\n",
    "a function without calls": "def train_step():\n    loss.backward()\n    optimizer.step()\n",
    "a comprehension": "steps = [optimizer.step() for optimizer in optimizers]\n",
    "one turn for each model": "for model in models:\n    model(x).backward()\n",
    "not called": "for x in loader:\n    f = loss.backward\n",
}


@pytest.mark.parametrize("source", DOES_NOT.values(), ids=DOES_NOT.keys())
def test_it_does_not_train(source: str) -> None:
    assert found(source) == LoopsFound((), ())


def test_a_while_loop_is_left_with_the_reason() -> None:
    left = found("while step < 10:\n    model(next(batches)).backward()\n    optimizer.step()\n")
    assert left.loops == ()
    assert [(each.line, "while loop" in each.reason) for each in left.left] == [(1, True)]


def test_nested_counters_are_left_with_the_reason() -> None:
    left = found("for i in range(9):\n    for _ in range(5):\n        d_opt.step()\n    g_opt.step()\n")
    assert left.loops == ()
    assert "not clear" in left.left[0].reason


MODELS = {
    "model": ("for x in loader:\n    loss = model(x)\n    loss.backward()\n", "model"),
    "net": ("for x in loader:\n    loss = net(x)\n    loss.backward()\n", "net"),
    "own name": ("unet.train()\nfor x in loader:\n    unet(x).backward()\n", "unet"),
    "attribute": ("for x in loader:\n    self.model(x).backward()\n", "self.model"),
    "handed on": ("for x in loader:\n    loss_of(model, x).backward()\n", "model"),
    "one of two": ("teacher.eval()\nfor x in loader:\n    (model(x) - teacher(x)).backward()\n", "model"),
    "in a closure": ("for x in loader:\n    def f():\n        return model(x)\n    opt.step(f)\n", "model"),
    "two": ("g.train()\nd.train()\nfor x in loader:\n    d(g(x)).backward()\n", None),
    "made in the loop": ("for x in loader:\n    model = build()\n    model(x).backward()\n", None),
    "sometimes": ("for x in loader:\n    if flag:\n        net(x)\n    loss.backward()\n", None),
    "no model": ("for x in loader:\n    criterion(x).backward()\n", None),
}


@pytest.mark.parametrize(("source", "model"), MODELS.values(), ids=MODELS.keys())
def test_model(source: str, model: str | None) -> None:
    assert only(source).model == model


@pytest.mark.parametrize(
    "body",
    [
        "    loss = sum(model(x) for model in models)\n",
        "    losses = [model(x) for model in models]\n",
        "    losses = {name: model(x) for name, model in models}\n",
        "    from makers import model\n    loss = model(x)\n",
        "    import model\n    loss = model(x)\n",
        "    import model.inner\n    loss = model(x)\n",
        "    import inner as model\n    loss = model(x)\n",
        "    class model: pass\n    loss = model(x)\n",
        "    match x:\n        case model:\n            pass\n    loss = model(x)\n",
        "    match x:\n        case [*model]:\n            pass\n    loss = model(x)\n",
        "    match x:\n        case {**model}:\n            pass\n    loss = model(x)\n",
    ],
)
def test_a_model_that_the_turn_itself_names_is_not_there_when_it_begins(body: str) -> None:
    assert only(f"for x in loader:\n{body}    loss.backward()\n    optimizer.step()\n").model is None


def test_callable_iterator_is_not_a_loader() -> None:
    loop = only(f"for x in iter(get, None):\n    if True:\n{STEP}")
    assert get_wrapping_call(loop.node.iter) is None
    assert get_wrapping_call(cst.parse_expression("iter(loader)")) is not None
    assert get_wrapping_call(cst.parse_expression("tqdm(iterable=loader)")) is None
    assert get_wrapping_call(cst.parse_expression("enumerate(*these)")) is None
