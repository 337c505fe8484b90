"""`torch.compile(backend="frx")`: the inner backend's own program, the process's advice, no way to break the user."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends import registry
from torch._inductor.utils import run_and_get_code
from torch.utils.checkpoint import checkpoint

import frx_graph
from frx_graph import backend
from frx_graph.advisor import advisor
from frx_graph.capture.recorder import GraphRecorder
from frx_graph.compiler.inner_compiler import make_planned_backend
from frx_graph.errors import CaptureError

_ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _fresh_process_state() -> Iterator[None]:
    torch._dynamo.reset()
    frx_graph.clear()
    yield
    frx_graph.clear()
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).relu().permute(0, 2, 3, 1)
        return self.head(y).transpose(1, 2)


def _compiled(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model, backend="frx", options={"inner": "eager", **options})


def test_the_backend_is_found_without_an_import() -> None:
    assert "frx" in torch._dynamo.list_backends()


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
@pytest.mark.parametrize("train", [False, True])
def test_values_gradients_and_strides_are_the_inner_backends(inner: str, train: bool) -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(2, 4, 6, 6)
    with torch.set_grad_enabled(train):
        expected = torch.compile(net, backend=inner)(x)
        actual = _compiled(net, inner=inner)(x)
    assert torch.equal(actual, expected)
    assert actual.stride() == expected.stride()
    if train:
        gradients = [torch.autograd.grad(out.sum(), list(net.parameters())) for out in (expected, actual)]
        for ours, theirs in zip(*gradients, strict=True):
            assert torch.equal(ours, theirs)
            assert ours.stride() == theirs.stride()


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["apply", "advise"])
def test_the_program_is_inductors_own_kernel_for_kernel(mode: str) -> None:
    net, x = Net().eval(), torch.randn(2, 4, 6, 6)
    with torch.no_grad():
        expected, theirs = run_and_get_code(torch.compile(net), x)
        torch._dynamo.reset()
        actual, ours = run_and_get_code(torch.compile(net, backend="frx", options={"mode": mode}), x)
    assert torch.equal(actual, expected)
    assert actual.stride() == expected.stride()
    assert ours == theirs
    if mode == "advise":
        frx_graph.report(measure=False)


def test_fullgraph_dynamic_and_reset_work() -> None:
    net = Net()
    for dynamic in (None, True, False):
        torch._dynamo.reset()
        compiled = torch.compile(net, backend="frx", options={"inner": "eager"}, fullgraph=True, dynamic=dynamic)
        for batch in (2, 3):
            assert compiled(torch.randn(batch, 4, 6, 6)).shape == (batch, 6, 6, 5)


def test_the_report_covers_the_process_so_far() -> None:
    with pytest.raises(CaptureError, match="nothing has been compiled"):
        frx_graph.report()
    _compiled(Net(), mode="advise")(torch.randn(2, 4, 6, 6))
    first = frx_graph.report(measure=False)
    assert len(first.advice.graphs) == 1
    _compiled(nn.Linear(3, 3), mode="advise")(torch.randn(2, 3))
    assert len(frx_graph.report(measure=False).advice.graphs) == 2


def test_a_program_that_is_compiled_again_after_a_reset_counts_once() -> None:
    net = Net()
    for _ in range(2):
        torch._dynamo.reset()
        _compiled(net)(torch.randn(2, 4, 6, 6))
    assert len(frx_graph.report(measure=False).advice.graphs) == 1


def test_each_graph_is_analysed_under_its_own_inner_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    original = advisor.predict_copies

    def predict(facts: Any, measured: Any, contract: Any, inner: str) -> Any:
        asked.append(inner)
        return original(facts, measured, contract, inner)

    monkeypatch.setattr(advisor, "predict_copies", predict)
    _compiled(Net(), inner="eager")(torch.randn(2, 4, 6, 6))
    _compiled(nn.Linear(3, 3), inner="aot_eager")(torch.randn(2, 3))
    report = frx_graph.report(measure=False)
    assert asked == ["eager", "aot_eager"]
    assert report.advice.environment.inner == "eager, aot_eager"


def test_report_of_several_graphs_mentions_uncounted_calls() -> None:
    _compiled(nn.Linear(3, 3))(torch.randn(2, 3))
    assert not any(refusal.subject == "calls per step" for refusal in frx_graph.report(measure=False).refusals)
    _compiled(nn.Conv1d(3, 3, 1))(torch.randn(2, 3, 4))
    assert any(refusal.subject == "calls per step" for refusal in frx_graph.report(measure=False).refusals)


def test_apply_mode_hands_out_the_inner_backends_own_callable() -> None:
    made: list[Any] = []

    def own(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        made.append(graph.forward)
        return made[-1]

    torch._dynamo.register_backend(own, name="frx_test_inner")
    try:
        graph = torch.fx.symbolic_trace(nn.ReLU())
        for mode in ("apply", "advise"):
            assert (
                backend.frx(graph, [torch.randn(2, 3)], options={"inner": "frx_test_inner", "mode": mode}) == made[-1]
            )
    finally:
        registry._BACKENDS.pop("frx_test_inner")
        registry._COMPILER_FNS.pop("frx_test_inner")


def test_of_the_versions_of_a_frame_one_counts_and_training_wins() -> None:
    compiled, x = _compiled(Net()), torch.randn(2, 4, 6, 6)
    compiled(x)
    with torch.no_grad():
        compiled(x)
    graphs = frx_graph.report(measure=False).advice.graphs
    assert [graph.train for graph in graphs] == [True]


def test_both_modes_together_are_forwarded_to_inductor() -> None:
    checked = backend.parse_backend_options({"inner_options": {"max_autotune": True}}, "max-autotune-no-cudagraphs")
    assert checked.inner_mode == "max-autotune-no-cudagraphs"
    inner = make_planned_backend(checked, None, pytest.fail)
    assert inner.config["max_autotune"] is True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mod": "advise"}, "did you mean 'mode'"),
        ({"mode": "advice"}, "mode"),
        ({"inner": "inducter"}, "did you mean 'inductor'"),
        ({"inner": "frx"}, "cannot be the inner backend"),
        ({"inner": "eager", "inner_mode": "max-autotune"}, "takes neither"),
    ],
)
def test_wrong_option_error_gives_a_hint(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        torch.compile(Net(), backend="frx", options=options)(torch.randn(2, 4, 6, 6))


def test_internal_failure_falls_back_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(GraphRecorder, "note", broken)
    net, x = Net(), torch.randn(2, 4, 6, 6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = _compiled(net)(x)
        _compiled(nn.Linear(3, 3))(torch.randn(2, 3))
    assert torch.equal(out, net(x))
    ours = [w for w in caught if "frx could not record" in str(w.message)]
    assert len(ours) == 1
    assert "planted" in str(ours[0].message)


def test_untraceable_graph_is_reported_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("frx_graph.capture.recorder.trace_eager", broken)
    net, x = Net(), torch.randn(2, 4, 6, 6)
    assert torch.equal(_compiled(net)(x), net(x))
    report = frx_graph.report(measure=False)
    assert any("planted" in refusal.reason for refusal in report.refusals)


def test_the_step_of_an_optimizer_runs_and_is_refused_with_its_line() -> None:
    net = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    net(torch.ones(2, 3)).sum().backward()
    before = net.weight.detach().clone()
    torch.compile(optimizer.step, backend="frx", options={"inner": "eager"})()
    assert not torch.equal(net.weight, before)
    (refusal,) = (r for r in frx_graph.report(measure=False).refusals if "optimizer" in r.reason)
    assert refusal.site is not None
    assert refusal.site.file == __file__


def test_a_root_module_of_torchs_own_is_named_by_the_line_that_calls_it() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU())
    _compiled(model)(torch.randn(2, 4, 6, 6))
    findings = frx_graph.report(measure=False).findings
    assert findings
    assert {finding.site.file for finding in findings} == {__file__}
    assert {finding.site.function for finding in findings} == {
        "test_a_root_module_of_torchs_own_is_named_by_the_line_that_calls_it"
    }


def _script(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, timeout=120, cwd=_ROOT, check=False
    )


_PROGRAM = """
import torch
net = torch.nn.Conv2d(3, 4, 3)
compiled = torch.compile(net, backend="frx", options={"inner": "eager", "mode": "MODE"})
compiled(torch.randn(1, 3, 8, 8).permute(0, 1, 3, 2))
print("done")
"""


@pytest.mark.integration
def test_advise_mode_prints_at_exit_to_standard_error_without_an_import() -> None:
    done = _script(_PROGRAM.replace("MODE", "advise"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert "frx-graph" in done.stderr


@pytest.mark.integration
def test_apply_mode_prints_nothing() -> None:
    done = _script(_PROGRAM.replace("MODE", "apply"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert "frx" not in done.stderr


@pytest.mark.integration
@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("plan", [None, "all"])
@pytest.mark.parametrize("compiling", ["torch", "frx"])
def test_checkpoint_counts_only_tensors_the_program_saves(inner: str, plan: str | None, compiling: str) -> None:
    """The program is compiled in the first forward, and only there."""
    options = {"inner": inner} if plan is None else {"inner": inner, "plan": plan}
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
    if compiling == "frx":
        compiled = frx_graph.compile(model, options=options)
    else:
        compiled = torch.compile(model, backend="frx", options=options)
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    for _ in range(2):
        checkpoint(compiled, x, use_reentrant=False).sum().backward()
    assert x.grad is not None
    assert len(backend._session.capture().graphs) == 1
