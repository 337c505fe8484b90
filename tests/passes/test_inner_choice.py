import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import frx_graph
from frx_graph import backend
from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.compiler_graphs import wrap_aot_graph
from frx_graph.facts.build import build_graph_facts
from frx_graph.options import parse_backend_options
from frx_graph.passes.inner_choice import (
    CHOICES,
    NAME,
    POOLED,
    freezes_weights,
    get_choice_options,
    propose_inner_choices,
)
from frx_graph.passes.layouts.inductor_layout import is_channels_last_forced
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Candidate, Refusal
from frx_graph.support.allocator import Allocation, find_chosen_allocator

pytestmark = pytest.mark.filterwarnings("ignore:frx applies rewrites")


def subject_of(
    program, *shapes: tuple[int, ...], train: bool = False, weights: bool = True, inner: str = "inductor"
) -> RewriteSubject:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        module = make_fx(program)(*(mode.from_tensor(torch.empty(shape)) for shape in shapes))
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    captured = wrap_aot_graph(
        module, graph_id="test", phase=Phase.FORWARD, train=train, static_inputs=names[1:] if weights else ()
    )
    return RewriteSubject(facts=build_graph_facts(captured), phase=Phase.FORWARD, inner=inner)


def convolution(x: Tensor, w: Tensor) -> Tensor:
    return torch.conv2d(x, w)


IMAGE, WEIGHT = (2, 8, 6, 6), (4, 8, 3, 3)


def outcomes(subject: RewriteSubject) -> list[Candidate | Refusal]:
    laid_out = is_channels_last_forced(subject.facts, subject.phase, subject.inner)
    return list(
        propose_inner_choices(subject.facts, subject.inner, channels_last=laid_out, allocation=Allocation.CHOSEN)
    )


def names(subject: RewriteSubject) -> list[str]:
    return [choice.choices[0] for choice in outcomes(subject) if isinstance(choice, Candidate)]


def test_inductor_default_is_not_offered_as_a_choice() -> None:
    rest = ["freezing", "freezing_cpp_wrapper", "eager", "eager_freezing"]
    facts = subject_of(convolution, IMAGE, WEIGHT).facts
    for channels_last, other in ((True, "off"), (False, "forced")):
        found = propose_inner_choices(facts, "inductor", channels_last=channels_last, allocation=Allocation.CHOSEN)
        candidates = [choice.choices[0] for choice in found if isinstance(choice, Candidate)]
        assert candidates == [f"layout_optimization_{other}", *rest]


def test_inductor_lays_out_all_convolutions_on_a_cpu() -> None:
    # Where it has oneDNN: so its rules.
    assert "layout_optimization_off" in names(subject_of(convolution, IMAGE, WEIGHT))


@pytest.mark.parametrize(
    ("subject", "refused"),
    [
        pytest.param(lambda: subject_of(torch.mm, (4, 4), (4, 4)), "layout", id="nothing to lay out"),
        pytest.param(lambda: subject_of(convolution, IMAGE, WEIGHT, train=True), "freezing", id="weights in training"),
        pytest.param(lambda: subject_of(convolution, IMAGE, WEIGHT, weights=False), "freezing", id="no weights"),
        pytest.param(lambda: subject_of(torch.add, (4, 4), (4, 4)), "eager", id="loops alone"),
        pytest.param(lambda: subject_of(convolution, IMAGE, WEIGHT, inner="eager"), "", id="not Inductor's"),
    ],
)
def test_irrelevant_choice_is_refused(subject, refused: str) -> None:
    refusals = [outcome for outcome in outcomes(subject()) if isinstance(outcome, Refusal)]
    assert any(refused in refusal.subject for refusal in refusals)
    assert all(refusal.reason for refusal in refusals)
    assert not any(refused in name for name in names(subject()))


LARGE = (2, 8, 64, 64)
"""An image whose result has 128 KiB."""


def explain_pooling(subject: RewriteSubject, allocation: Allocation) -> str | None:
    """Return why pooled allocation is refused; None: it is proposed."""
    found = propose_inner_choices(subject.facts, subject.inner, channels_last=True, allocation=allocation)
    refused = {outcome.subject: outcome.reason for outcome in found if isinstance(outcome, Refusal)}
    return refused.get(POOLED)


@pytest.mark.parametrize("inner", ["inductor", "eager"])
def test_pooled_allocation_is_proposed_for_results_whose_memory_is_given_back(inner: str) -> None:
    large = subject_of(convolution, LARGE, (8, 8, 3, 3), inner=inner)
    assert explain_pooling(large, Allocation.DEFAULT) is None
    for other in (Allocation.POOLED, Allocation.CHOSEN, Allocation.UNKNOWN):
        assert explain_pooling(large, other) == f"the allocation of host memory is {other} already"
    small = explain_pooling(subject_of(convolution, IMAGE, WEIGHT), Allocation.DEFAULT)
    assert small is not None
    assert "large enough" in small


@pytest.mark.integration
def test_pooled_allocation_pools_where_a_plan_asks_for_it(tmp_path) -> None:
    # In a process by itself, since there is no way back.
    script = """
import torch, frx_graph
from frx_graph.support.allocator import read_allocation

model = torch.nn.Conv2d(3, 4, 3).eval()
with torch.no_grad():
    compiled = torch.compile(model, backend="frx", options={"inner": "eager", "pool_allocations": True})
    x = torch.randn(1, 3, 8, 8)
    assert read_allocation() == "default"
    torch.testing.assert_close(compiled(x), model(x))
print(read_allocation())
"""
    variables = {name: os.environ[name] for name in os.environ if find_chosen_allocator({name: ""}) is None}
    done = subprocess.run(
        [sys.executable, "-c", script], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["pooled"]


@pytest.mark.parametrize(
    ("name", "freezes"),
    [("freezing", True), ("freezing_cpp_wrapper", True), ("eager_freezing", True), ("eager", False)],
)
def test_which_choices_freeze_weights(name: str, freezes: bool) -> None:
    candidates = (Candidate("reuse_memory", "graph", ()), Candidate(NAME, "", (), (name,)))
    assert freezes_weights(candidates) == freezes


OTHERS = [choice for choice in CHOICES if choice.name != POOLED]
"""Those that change nothing in the process for good."""


@pytest.mark.integration
@pytest.mark.parametrize("choice", OTHERS, ids=lambda choice: choice.name)
def test_the_options_of_every_choice_compile_a_program(choice) -> None:
    torch._dynamo.reset()
    options = dict(get_choice_options(Candidate("inner_choice", "", (), (choice.name,))))
    assert parse_backend_options(options, None).model_dump(exclude_defaults=True) == options
    model = torch.nn.Conv2d(8, 4, 3).eval()
    x = torch.randn(IMAGE)
    with torch.no_grad():
        compiled = frx_graph.compile(model, options={"plan": "solved", **options})
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.integration
def test_choices_that_need_a_trial_are_reported_with_the_graph() -> None:
    torch._dynamo.reset()
    backend.clear()
    with torch.no_grad():
        torch.compile(torch.nn.Conv2d(8, 4, 3), backend="frx", options={"plan": "solved"})(torch.randn(IMAGE))
    (done,) = backend.rewritten()
    assert [choice.choices[0] for choice in done.untried] == [
        "layout_optimization_off",
        "freezing",
        "freezing_cpp_wrapper",
        "eager",
        "eager_freezing",
    ]
