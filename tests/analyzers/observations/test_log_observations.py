"""oneDNN's log, and code of Inductor's: reorders and copying loops, by the operators that they serve."""

from __future__ import annotations

from pathlib import Path

from frx_graph.analyzers.observations.log_observations import observe_generated_code, observe_onednn_log
from frx_graph.analyzers.observations.observation import ObservedCall, RunFile, RunSetting, Work
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.inductor_code import read_inductor_code
from frx_graph.evidence.onednn import parse_log
from frx_graph.evidence.trace.events import Operand
from frx_graph.records import OperandRole

LOG = Path(__file__).parents[2] / "data" / "onednn" / "onednn-3.13.3.log"


def section(title: str) -> RunFile:
    text = LOG.read_text()
    before, _, rest = text.partition(f"# {title}\n")
    blank = "\n" * (before.count("\n") + 1)
    return observe_onednn_log(parse_log(blank + rest.partition("\n#")[0]), "run.log")


def test_reorders_belong_to_the_convolution_that_they_serve() -> None:
    file = section("grouped")
    assert file.setting == RunSetting("cpu", None)
    image, weight, result = file.observations[:3]
    assert (image.work, image.count, image.steps, image.phase) == (Work.CONVERSION, 1, None, Phase.FORWARD)
    (call,) = image.calls
    assert (call.operator, call.complete) == ("aten::convolution", False)
    # The groups are no dimension of torch's weight.
    assert [operand.shape for operand in call.operands or ()] == [(2, 32, 14, 14), (64, 8, 3, 3)]
    roles = [observation.roles for observation in (image, weight, result)]
    assert roles == [frozenset({role}) for role in (OperandRole.INPUT, OperandRole.WEIGHT, OperandRole.OUTPUT)]
    assert weight.copied == Operand((64, 8, 3, 3), DType.FLOAT32)
    assert (image.where, image.detail) == ("line 10", "abcd to aBcd8b")
    assert image.bytes == 2 * 4 * 2 * 32 * 14 * 14
    duration = image.measurements[0]
    assert (duration.metric, duration.unit, duration.value) == ("duration", "s", 15.054e-3)
    assert (duration.provenance.line, duration.provenance.source) == (10, "run.log")


def test_a_backward_has_the_operands_of_torchs_operator() -> None:
    backward = [observation for observation in section("grouped").observations if observation.phase is Phase.BACKWARD]
    assert backward
    for observation in backward:
        (call,) = observation.calls
        assert call.operator == "aten::convolution_backward"
        shapes = [operand.shape for operand in call.operands or ()]
        assert shapes == [(2, 64, 14, 14), (2, 32, 14, 14), (64, 8, 3, 3)]


def test_a_convolution_without_a_reorder_is_quiet_in_the_order_of_its_operands() -> None:
    line = (
        "onednn_verbose,v1,primitive,exec,cpu,convolution,brg,forward_inference,src:f32::blocked:acdb::f0 "
        "wei:f32::blocked:acdb::f0 bia:undef::undef::: dst:f32::blocked:acdb::f0,,alg:convolution_direct,"
        "mb2_ic8oc16_ih4oh4kh3sh1dh0ph1_iw4ow4kw3sw1dw0pw1,0.5"
    )
    (quiet,) = observe_onednn_log(parse_log(f"{line}\n{line}"), "run.log").quiet
    image, weight = quiet.call.operands or ()
    assert (image.strides, weight.strides, quiet.count) == ((128, 1, 32, 8), (72, 1, 24, 8), 2)
    blocked = line.replace("src:f32::blocked:acdb", "src:f32::blocked:aBcd8b")
    assert observe_onednn_log(parse_log(blocked), "run.log").quiet == ()


def test_standalone_reorder_is_reported_as_a_onednn_reorder() -> None:
    reorder = (
        "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0 dst:f32::blocked:ba::f0,,,"
        "8x64,0.1"
    )
    (seen,) = observe_onednn_log(parse_log(reorder), "run.log").observations
    assert (seen.calls, seen.copied) == ((ObservedCall("onednn::reorder"),), Operand((8, 64), DType.FLOAT32))


def test_copying_loops_are_clones_of_what_they_write() -> None:
    code = """\
    def call(self, args):
        buf0 = empty_strided_cuda((4, 32, 16), (512, 16, 1), torch.float16)
        triton_poi_fused_clone_0.run(arg0_1, buf0, 2048, stream=stream0)
        buf1 = empty_strided_cuda((4, 32, 16), (512, 16, 1), torch.float16)
        triton_poi_fused_clone_0.run(arg1_1, buf1, 2048, stream=stream0)
"""
    file = observe_generated_code(read_inductor_code(code.splitlines()), "code.py")
    assert file.setting == RunSetting("cuda", compiled=True)
    (seen,) = file.observations
    assert (seen.count, seen.where, seen.copied) == (2, "line 3", Operand((4, 32, 16), DType.FLOAT16))
    assert seen.bytes == 2 * 2 * 2 * 2048
    assert [fact.provenance.line for fact in seen.measurements] == [3, 5]
