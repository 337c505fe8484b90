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
from frx_graph.passes.inner_choice import CHOICES, get_choice_options, propose_inner_choices
from frx_graph.passes.layouts.inductor_layout import is_channels_last_forced
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Candidate, Refusal

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
    return list(propose_inner_choices(subject.facts, subject.inner, channels_last=laid_out))


def names(subject: RewriteSubject) -> list[str]:
    return [choice.choices[0] for choice in outcomes(subject) if isinstance(choice, Candidate)]


def test_inductor_default_is_not_offered_as_a_choice() -> None:
    rest = ["freezing", "eager", "eager_freezing"]
    facts = subject_of(convolution, IMAGE, WEIGHT).facts
    for channels_last, other in ((True, "off"), (False, "forced")):
        found = propose_inner_choices(facts, "inductor", channels_last=channels_last)
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


@pytest.mark.integration
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
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
        "eager",
        "eager_freezing",
    ]
