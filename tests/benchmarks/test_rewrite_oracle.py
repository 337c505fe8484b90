"""The oracle: what it must catch is planted, and what is right must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from other_layout import OtherLayout
from random_program import RandomProgram
from rewrite_oracle import STORED, Outcome, check_program
from smallest_program import smallest
from torch import fx

from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate

PROGRAM = RandomProgram(
    inputs=("torch.randn(n, 3, 6, 5, dtype=torch.float32).requires_grad_()", "torch.randn(n, 4, dtype=torch.float32)"),
    modules=("self.m0 = nn.Conv2d(3, 4, 3)",),
    lines=("v0 = self.m0(i0)", "v1 = torch.tanh(v0)", "i1.mul_(0.5)", "v2 = v1[:, 1:]"),
    outputs=("v1", "v2", "i1"),
)
TRAINING = replace(PROGRAM, train=True)

Change = Callable[[fx.Graph], None]


def plant(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """The only rewrite there is: `change`, made to every graph."""

    def propose(subject: RewriteSubject) -> Iterator[Candidate]:
        yield Candidate("planted", subject.facts.graph_id, ())

    def apply(_subject: RewriteSubject, module: fx.GraphModule, _candidate: Candidate) -> tuple[str, ...]:
        change(module.graph)
        return ()

    monkeypatch.setattr("frx_graph.compiler.rewrite_pipeline.REWRITES", (Rewrite("planted", propose, apply),))
    monkeypatch.setattr("frx_graph.compiler.plans.ALL_REWRITES", ("planted",))


def _after(graph: fx.Graph, target: torch._ops.OpOverload, insert: Callable[[fx.Node], fx.Node]) -> None:
    """What reads results of `target` reads what `insert` makes of them."""
    for node in graph.find_nodes(op="call_function", target=target):
        readers = list(node.users)
        with graph.inserting_before(node.next):
            made = insert(node)
        for reader in readers:
            reader.replace_input_with(node, made)


def _nothing(graph: fx.Graph) -> None:
    _after(graph, torch.ops.aten.tanh.default, lambda node: graph.call_function(torch.ops.aten.alias.default, (node,)))


def _other_values(graph: fx.Graph) -> None:
    _after(
        graph, torch.ops.aten.tanh.default, lambda node: graph.call_function(torch.ops.aten.flip.default, (node, [2]))
    )


def _other_strides(graph: fx.Graph) -> None:
    def channels_last(node: fx.Node) -> fx.Node:
        return graph.call_function(torch.ops.aten.clone.default, (node,), {"memory_format": torch.channels_last})

    _after(graph, torch.ops.aten.tanh.default, channels_last)


def _no_mutation(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
        node.args = (node.args[0], 1.0)


def _other_gradient(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.tanh_backward.default):
        node.args = (node.args[1], node.args[1])


def _raises_when_run(graph: fx.Graph) -> None:
    _after(
        graph,
        torch.ops.aten.tanh.default,
        lambda node: graph.call_function(torch.ops.aten.view.default, (node, [7, 7])),
    )


def _fails(graph: fx.Graph) -> None:
    raise RuntimeError("planted")


@pytest.mark.parametrize("program", [PROGRAM, TRAINING], ids=["inference", "training"])
def test_a_rewrite_that_changes_nothing_passes(program: RandomProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, _nothing)
    verdict = check_program(program)
    assert verdict.outcome is Outcome.OK, verdict.problems
    assert verdict.applied["planted"] == 1 + program.train


@pytest.mark.parametrize(
    ("program", "change", "said"),
    [
        (PROGRAM, _other_values, "value of output 0 in step 0"),
        (TRAINING, _other_values, "value of gradient of parameter m0.weight in step 0"),
        (PROGRAM, _other_strides, "strides of output 0 in step 0"),
        (TRAINING, _other_gradient, "value of gradient of input 0 in step 0"),
        (TRAINING, _other_gradient, "value of parameter m0.weight in step 0"),
        (PROGRAM, _no_mutation, "value of input 1 in step 0"),
        (PROGRAM, _raises_when_run, "a rewrite failed: RuntimeError: shape '[7, 7]' is invalid for input of size 96"),
        (PROGRAM, _fails, "a rewrite failed: RuntimeError: planted"),
    ],
)
def test_planted_fault_is_caught(
    program: RandomProgram, change: Change, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, change)
    verdict = check_program(program)
    assert verdict.outcome is Outcome.WRONG
    assert said in verdict.problems


@pytest.mark.parametrize("special", ["nan", "inf"])
def test_a_wrong_value_beside_nan_or_infinity_is_caught(special: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's oracle says of any two tensors with the same NaN that they are the same."""
    lines = (*PROGRAM.lines[:2], "v2 = v1.clone()", f"v2[0, 0, 0, 0] = float('{special}')")
    program = replace(PROGRAM, lines=lines, outputs=("v2",))
    plant(monkeypatch, _other_values)
    assert "value of output 0 in step 0" in check_program(program).problems
    plant(monkeypatch, _nothing)
    assert check_program(program).outcome is Outcome.OK


def test_a_difference_larger_than_what_rounding_makes_is_not_put_down_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the output's hundred elements jump when inputs move by their last digits."""
    jumps = ("v2 = i1 - i1.mean(1, keepdim=True)", "v3 = (v2.sum(1) > 0).float()")
    program = replace(
        PROGRAM,
        lines=(*PROGRAM.lines[:2], *jumps, "v4 = torch.cat([5 * v1.flatten(), v3])"),
        outputs=("v4",),
    )
    plant(monkeypatch, _other_values)
    assert check_program(program).outcome is Outcome.WRONG


def test_a_result_that_a_later_call_writes_over_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []

    def into_one_place(value: torch.Tensor) -> torch.Tensor:
        kept.append(value.clone()) if not kept else kept[0].copy_(value)
        return kept[0]

    def remembers(graph: fx.Graph) -> None:
        _after(graph, torch.ops.aten.tanh.default, lambda node: graph.call_function(into_one_place, (node,)))

    plant(monkeypatch, remembers)
    verdict = check_program(replace(PROGRAM, outputs=("v1",)))
    assert verdict.outcome is Outcome.WRONG
    assert "value of output 0 at the end in step 0" in verdict.problems


def test_outputs_that_come_to_share_memory_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    program = RandomProgram(
        ("torch.randn(n, 4, 6, 5, dtype=torch.float32)",), (), ("v0 = i0.tanh()", "v1 = v0 * 2"), ("v0", "v1")
    )

    def shared(graph: fx.Graph) -> None:
        (tanh,) = graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default)
        (output,) = graph.find_nodes(op="output")
        output.args = ((tanh, tanh),)

    plant(monkeypatch, shared)
    verdict = check_program(program)
    assert verdict.outcome is Outcome.WRONG
    assert "sharing of output 0 and output 1 in step 0" in verdict.problems


def test_a_weight_that_was_kept_from_the_first_step_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def remembers(graph: fx.Graph) -> None:
        kept: list[torch.Tensor] = []

        def first(value: torch.Tensor) -> torch.Tensor:
            kept.append(value.detach().clone())
            return kept[0]

        (call,) = graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
        weight = call.args[1]
        with graph.inserting_before(call):
            call.replace_input_with(weight, graph.call_function(first, (weight,)))

    plant(monkeypatch, remembers)
    verdict = check_program(PROGRAM)
    assert verdict.outcome is Outcome.WRONG
    assert all("step 1" in problem for problem in verdict.problems)


def test_fault_of_the_baseline_is_not_attributed_to_frx() -> None:
    program = RandomProgram(
        ("torch.randn(n, 1, 4, 5, dtype=torch.float32).requires_grad_()",),
        (),
        ("v0 = i0 * i0", "v1 = i0.unsqueeze(3).expand([-1, -1, -1, 2, -1])"),
        ("v1", "v0"),
        train=True,
    )
    assert check_program(program).outcome in (Outcome.BASELINE, Outcome.IDLE, Outcome.OK)


def test_a_kernel_with_other_strides_than_its_fake_is_rewritten() -> None:
    """A reflection pad, beside a dropout that nobody reads."""
    padded = RandomProgram(
        inputs=("torch.randn(1, 4, 6, 6).to(memory_format=torch.channels_last)",),
        modules=("self.m0 = nn.Conv2d(7, 14, 1, groups=7, padding=1, stride=2)",),
        lines=("v0 = F.dropout(i0, 0.3, self.training)", "v1 = self.m0(F.pad(i0, [1, 1, 0, 2, 1, 2], mode='reflect'))"),
        outputs=("v1",),
        train=True,
    )
    verdict = check_program(padded)
    assert verdict.outcome is Outcome.OK
    assert verdict.applied


def test_differences_from_rounding_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step function of sums that are zero but for rounding: another order of summation decides."""
    program = RandomProgram(
        ("torch.randn(n, 8, dtype=torch.float32)",),
        (),
        ("v0 = i0 - i0.mean(1, keepdim=True)", "v1 = (v0.sum(1) > 0).float()", "v2 = v1.tanh()"),
        ("v2",),
    )
    plant(monkeypatch, _other_sums)
    assert check_program(program).outcome in (Outcome.UNSTABLE, Outcome.OK)


def test_values_at_a_kink_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of `relu` asks for the sign of sums that are zero but for rounding."""
    program = RandomProgram(
        ("torch.randn(8 * n, 8, dtype=torch.float64)",),
        ("self.m0 = nn.Linear(8, 8)",),
        (
            "v0 = self.m0(i0)",
            "v1 = (v0 - v0.mean(1, keepdim=True)).sum(1)",
            "v2 = F.relu(v1 + v0[:, 0] - v0[:, 0].detach())",
        ),
        ("v2",),
        dtype="torch.float64",
        train=True,
    )
    plant(monkeypatch, _other_sums)
    assert check_program(program).outcome is Outcome.UNSTABLE


NEARLY_CONSTANT = RandomProgram(
    (
        "torch.randn(n, 6, dtype=torch.float32).requires_grad_()",
        "torch.randn(n, 1, 4, 5, 4, dtype=torch.float32).expand(n, 3, 4, 5, 4).detach().requires_grad_()",
    ),
    (
        "self.m0 = nn.Conv3d(3, 3, 1, groups=3, padding=1)",
        "self.m1 = nn.BatchNorm3d(3)",
        "self.m3 = nn.Conv3d(3, 3, 3, groups=3, padding=1, bias=False)",
    ),
    ("v0 = self.m0(i1)", "v1 = self.m1(v0)", "v3 = self.m3(v1)"),
    ("v3",),
    train=True,
    dynamic=True,
    tangents="like",
)


def test_what_kernels_of_the_other_layout_round_otherwise_proves_nothing() -> None:
    """A bias before a batch norm has a gradient of 0 but for rounding, whatever the numbers are that it reads. On an
    AVX-512 machine it is told wrong if kernels of the other layout are not looked at."""
    assert check_program(NEARLY_CONSTANT).outcome in (Outcome.UNSTABLE, Outcome.OK)


def test_kernels_of_the_other_layout_leave_results_where_they_were() -> None:
    norm, images = torch.nn.BatchNorm2d(3), torch.randn(2, 3, 6, 7) + 10.0
    plain = norm(images)
    with OtherLayout():
        other = norm(images)
    assert other.stride() == plain.stride()
    assert not torch.equal(other, plain)
    torch.testing.assert_close(other, plain, rtol=0, atol=1e-4)


def _other_sums(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList):
        with graph.inserting_before(node):
            turned = graph.call_function(torch.ops.aten.flip.default, (node.args[0], [1]))
        node.replace_input_with(node.args[0], turned)


def test_program_that_fails_in_eager_has_outcome_eager() -> None:
    verdict = check_program(replace(PROGRAM, lines=("v1 = i0.view(7)", "v2 = i0")))
    assert verdict.outcome is Outcome.EAGER


@pytest.mark.integration
def test_a_failing_program_is_cut_down_to_what_it_fails_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, _other_values)
    long = replace(PROGRAM, lines=("v9 = i0 * 2", *PROGRAM.lines, "v8 = v2 + 1"), outputs=("v8", "v1", "i1"))
    small = smallest(long, lambda program: check_program(program).outcome is Outcome.WRONG)
    assert [line for line in small.lines if "tanh" in line] == list(small.lines)
    assert small.modules == ()
    assert len(small.outputs) == 1


WRONG_IN_EAGER = RandomProgram(
    ("torch.randn(1, 4, 6, 6, dtype=torch.float32).requires_grad_()",),
    (
        "self.m0 = nn.Conv2d(4, 2, 3, groups=2)",
        "self.m1 = nn.InstanceNorm2d(2, affine=True)",
        "self.m2 = nn.Conv2d(2, 1, 2, padding=1, dilation=2)",
    ),
    ("v0 = self.m2(self.m1(self.m0(i0)))", "v1 = i0.tanh()"),
    ("v0", "v1"),
    train=True,
    model_channels_last=True,
)
"""The gradient of instance normalisation of one channels-last image."""


WRONG_WEIGHT_GRADIENT = RandomProgram(
    ("torch.randn(n, 1, 4, 6, dtype=torch.float64).permute([0, 3, 2, 1])",),
    ("self.m0 = nn.Conv2d(6, 4, 3, groups=2, padding=1)",),
    ("v0 = self.m0(i0)",),
    ("v0",),
    dtype="torch.float64",
    train=True,
    model_channels_last=True,
)
"""That of a grouped convolution in float64 whose image is one column wide."""


def test_stride_bug_in_torch_has_outcome_eager() -> None:
    verdict = check_program(WRONG_WEIGHT_GRADIENT)
    assert verdict.outcome is Outcome.EAGER
    assert "convolution_backward" in verdict.problems[0]


def test_reads_with_unknown_strides_match_eager_even_if_wrong() -> None:
    verdict = check_program(WRONG_IN_EAGER)
    assert verdict.outcome in (Outcome.OK, Outcome.REFUSED)
    assert any("strides were uncertain from the first" in refusal for refusal in verdict.refusals)


def test_only_the_strides_that_torch_computes_wrongly_by_do() -> None:
    assert check_program(replace(WRONG_IN_EAGER, model_channels_last=False)).outcome is Outcome.OK


def test_torch_fault_does_not_hide_an_frx_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, _other_values)
    assert check_program(WRONG_IN_EAGER).outcome is Outcome.WRONG


STRIDES_ASKED = RandomProgram(
    inputs=("torch.randn(n, 3, 8, 8)",),
    modules=("self.m0 = nn.Conv2d(3, 4, 3)", "self.m1 = nn.Conv2d(4, 4, 3)"),
    lines=("v0 = self.m0(i0)", "v1 = v0 if v0.is_contiguous() else v0 * 2", "v2 = self.m1(v1)"),
    outputs=("v2",),
)


@pytest.mark.parametrize("train", [False, True])
def test_a_program_is_compared_with_eager_on_weights_that_are_stored_so(train: bool) -> None:
    verdict = check_program(STRIDES_ASKED, STORED, train=train)
    assert (verdict.outcome, verdict.applied["preconvert_weights"]) == (Outcome.OK, 2)


def test_what_is_wrong_on_stored_weights_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, _other_values)
    with_tanh = replace(STRIDES_ASKED, lines=("v0 = self.m0(i0)", "v1 = torch.tanh(v0)", "v2 = self.m1(v1)"))
    verdict = check_program(with_tanh, STORED)
    assert (verdict.outcome, verdict.applied["preconvert_weights"]) == (Outcome.WRONG, 2)


@pytest.mark.integration
def test_prepacked_weights_without_visible_strides_pass() -> None:
    blind = replace(STRIDES_ASKED, lines=("v0 = self.m0(i0)", "v2 = self.m1(v0)"))
    for train in (False, True):
        verdict = check_program(blind, STORED, train=train)
        assert (verdict.outcome, verdict.applied["preconvert_weights"]) == (Outcome.OK, 2)


def test_data_dependent_graph_is_refused_and_not_a_fault() -> None:
    cut_by_a_value = replace(
        PROGRAM,
        inputs=("torch.randn(n, 3, dtype=torch.float32)", "torch.tensor(1)"),
        modules=(),
        lines=("v0 = torch.narrow(i0, 1, i1, 2)",),
        outputs=("v0",),
    )
    verdict = check_program(cut_by_a_value)
    assert verdict.outcome is Outcome.REFUSED, verdict.problems
    (reason,) = verdict.refusals
    assert "DataDependentOutputException" in reason


def test_failure_beside_a_compiled_graph_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_graph: fx.Graph) -> None:
        raise ValueError("planted")

    plant(monkeypatch, breaks)
    verdict = check_program(PROGRAM)
    assert verdict.outcome is Outcome.WRONG
    assert any("planted" in problem for problem in verdict.problems)
