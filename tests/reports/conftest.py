"""Hand-made advice: what the renderers must show, without a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from frx_graph.advice import (
    Advice,
    AutopilotSearch,
    Environment,
    GraphSummary,
    LayoutSpan,
    PeakFlops,
    RooflinePoint,
    Timings,
    Totals,
    TriedCandidate,
)
from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.records import (
    Basis,
    Copy,
    CopyKind,
    Effort,
    Evidence,
    Finding,
    OperandRole,
    Refusal,
    Risk,
    Saving,
    Severity,
)
from frx_graph.rules.rule_card import Example, RuleCard

ROOT = Path("/project")
GOLDEN = Path(__file__).parent / "golden"
HOSTILE = "\x1b[31m<script>alert(1)</script>[bold]\r\n::error::%0A|`|,\u202e\udcff"

ENVIRONMENT = Environment(
    frx_version="0.1.0",
    torch_version="2.15.0",
    python_version="3.11.9",
    platform="Linux-x86_64",
    device="cpu",
    device_name="AMD EPYC 9B14",
    inner="eager",
    threads=2,
    bandwidth_bytes_per_s=23.1e9,
    peak_flops=(PeakFlops("float32", 1.4e11), PeakFlops("bfloat16", 5.2e11)),
    contract="cpu-2.15",
)

CONV = CallSite("/project/models/resnet.py", 142, "forward", "model.layer3.*.conv1")
CHURN = CallSite("/venv/lib/python3.11/site-packages/vision/attention.py", 88, "_split_heads", "model.blocks.*.attn")
WEIGHT = CallSite("/project/models/resnet.py", 97, "forward", "model.stem")


def copy_at(
    site: CallSite,
    *,
    operator: str = "aten.convolution",
    kind: CopyKind = CopyKind.REORDER,
    role: OperandRole = OperandRole.INPUT,
    bytes: int = 6_422_528,
    count: int = 2,
    basis: Basis = Basis.PREDICTED,
    node: str = "convolution_4",
) -> Copy:
    return Copy(
        node=node,
        site=site,
        operator=operator,
        kind=kind,
        role=role,
        value="relu_3",
        bytes=bytes,
        count=count,
        phase=Phase.FORWARD,
        basis=basis,
        cause="the kernel wants its blocked format",
    )


def finding_at(site: CallSite = CONV, **changes: object) -> Finding:
    plain = Finding(
        rule="FRX001",
        title="convolution copies its input into a blocked format",
        severity=Severity.HIGH,
        site=site,
        nodes=("convolution_4", "convolution_6"),
        count_per_step=4,
        bytes_per_step=12_845_056,
        saving=Saving(predicted_pct_min=6.1, predicted_pct_max=8.04),
        effort=Effort.ONE_LINE,
        risk=Risk.LOW,
        fix="Convert the model to channels_last:\n    model = model.to(memory_format=torch.channels_last)",
        confidence=0.95,
        evidence=(
            Evidence("input (8, 256, 14, 14) is contiguous; jit:avx512_core wants aBcd16b", "contract cpu-2.15"),
            Evidence("2 reorder lines, 0.31 ms together", "oneDNN log", Basis.OBSERVED),
            Evidence("the stage runs 3.1 GFLOP at 12 FLOP/B", "roofline"),
        ),
        copies=(copy_at(site), copy_at(site, role=OperandRole.OUTPUT, node="convolution_6")),
        graph_id="0/0",
        modules=("model.layer3.0.conv1", "model.layer3.1.conv1"),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


CHURN_FINDING = finding_at(
    CHURN,
    rule="FRX002",
    title="contiguous() repeats a copy that reshape makes",
    severity=Severity.MEDIUM,
    nodes=("clone_1",),
    count_per_step=12,
    bytes_per_step=4_816_896,
    saving=Saving(predicted_pct_min=2.0, predicted_pct_max=3.0, measured_pct=2.6),
    effort=Effort.LOCAL,
    risk=Risk.MEDIUM,
    fix="Drop the call: scaled_dot_product_attention takes the strided heads.",
    confidence=0.8,
    basis=Basis.OBSERVED,
    evidence=(Evidence("clone to contiguous format, 12 times", "profiler", Basis.OBSERVED),),
    copies=(
        copy_at(CHURN, operator="aten.clone", kind=CopyKind.EXPLICIT, bytes=4_816_896, count=12, basis=Basis.PREDICTED),
    ),
    modules=tuple(f"model.blocks.{i}.attn" for i in range(12)),
)
UNKNOWN_FINDING = finding_at(
    UNKNOWN_SITE,
    rule="FRX010",
    title="custom operator forces contiguous inputs",
    severity=Severity.INFO,
    nodes=("my_op",),
    count_per_step=1,
    bytes_per_step=None,
    saving=Saving(),
    effort=Effort.REFACTOR,
    risk=Risk.HIGH,
    fix="Tag the operator flexible_layout.",
    confidence=0.5,
    evidence=(),
    copies=(),
    graph_id="",
    modules=(),
)
WEIGHT_FINDING = finding_at(
    WEIGHT,
    rule="FRX007",
    title="weight is converted on every call",
    severity=Severity.LOW,
    nodes=("convolution",),
    count_per_step=1,
    bytes_per_step=75_264,
    saving=Saving(predicted_pct_max=0.04),
    copies=(copy_at(WEIGHT, role=OperandRole.WEIGHT, bytes=75_264, count=1, node="convolution"),),
    evidence=(),
    modules=("model.stem",),
)

SPANS = (
    LayoutSpan("model.stem", Phase.FORWARD, "plain", 3, 9_000_000, 3, 3_000_000),
    LayoutSpan("model.layer1.0", Phase.FORWARD, "channels_last", 9, 30_000_000, 0, 0),
    LayoutSpan("model.layer2.0", Phase.FORWARD, "permuted", 4, 12_000_000, 1, 6_000_000),
    LayoutSpan("model.layer3.0", Phase.FORWARD, "plain", 8, 26_000_000, 4, 12_845_056),
    LayoutSpan("model.head", Phase.FORWARD, "strided", 2, 1_000_000, 0, 0),
    LayoutSpan("model.head", Phase.BACKWARD, "expanded", 2, 2_000_000, 0, 0),
    LayoutSpan("model.layer3.0", Phase.BACKWARD, "blocked", 8, 40_000_000, 2, 10_000_000),
)
ROOFLINE = (
    RooflinePoint("aten.convolution", CONV, Phase.FORWARD, "float32", 4, 924_844_032, 25_690_112, 0.0121),
    RooflinePoint("aten.convolution", WEIGHT, Phase.FORWARD, "float32", 1, 236_027_904, 16_000_000),
    RooflinePoint("aten.addmm", CHURN, Phase.FORWARD, "bfloat16", 12, 1_048_576, 2_099_200, 0.0004),
    RooflinePoint("aten.clone", CHURN, Phase.FORWARD, "bfloat16", 12, 0, 4_816_896, 0.0004),
)


def sample_advice() -> Advice:
    findings = (finding_at(), CHURN_FINDING, WEIGHT_FINDING, UNKNOWN_FINDING)
    return Advice(
        target="models/resnet.py:make",
        environment=ENVIRONMENT,
        graphs=(GraphSummary("0/0", "forward of ResNet", True, 36, SPANS, ROOFLINE),),
        findings=findings,
        refusals=(
            Refusal("FRX004", "no anchor was measured on this device", ("convolution_9",), CONV),
            Refusal("graph 1/0", "torch.cond has no layout facts"),
        ),
        copies=tuple(copy for finding in findings for copy in finding.copies),
        totals=Totals(36, 17, 17_737_216, 14.78, 2),
        timings=Timings(1.24, 0.031, 0.5, None),
    )


def observed_advice() -> Advice:
    advice = sample_advice()
    seen = (
        *(replace(copy, basis=Basis.OBSERVED) for copy in advice.findings[0].copies),
        copy_at(CHURN, operator="aten.clone", bytes=2_408_448, count=6, basis=Basis.OBSERVED),
        copy_at(UNKNOWN_SITE, bytes=100_352, count=1, basis=Basis.OBSERVED),
    )
    return replace(advice, observed=seen, timings=replace(advice.timings, observe_s=0.9), autopilot=(SEARCH,))


SEARCH = AutopilotSearch(
    "0/0",
    "0123456789abcdef",
    74.2,
    (
        TriedCandidate(
            "propagate_layout",
            "promoted",
            "28.3 % faster (+25.1 to +31.0 %): the 3 % asked for is reached, and all 6 process pairs agree",
            1.283,
        ),
        TriedCandidate("eager", "rejected", "numerics: 3 of 12 results differ", None),
    ),
    "propagate_layout",
    "all was tried that measured times favour, or that may matter",
)


def empty_advice() -> Advice:
    return replace(
        sample_advice(), findings=(), refusals=(), copies=(), totals=Totals(36, 0, 0, 0.0, 0), graphs=(plain_graph(),)
    )


def plain_graph() -> GraphSummary:
    return GraphSummary("0/0", "forward of Tiny", False, 36, SPANS[1:2])


def failed_advice() -> Advice:
    """Nothing could be captured."""
    return replace(
        sample_advice(),
        graphs=(),
        findings=(),
        copies=(),
        refusals=(Refusal("forward of Broken", "data-dependent branch on tensor.item()", site=CONV),),
        totals=Totals(0, 0, 0, None, 0),
        environment=replace(ENVIRONMENT, bandwidth_bytes_per_s=None, peak_flops=(), contract=None),
    )


def hostile_advice() -> Advice:
    """Every string that a model, a trace or a file system can choose is hostile; every float that may be is NaN."""
    site = CallSite(f"/project/{HOSTILE}.py", 7, HOSTILE, HOSTILE)
    copy = replace(copy_at(site, operator=HOSTILE, node=HOSTILE), value=HOSTILE, cause=HOSTILE)
    finding = finding_at(
        site,
        title=f"copies {HOSTILE}",
        nodes=(HOSTILE,),
        fix=f"rename {HOSTILE}",
        saving=Saving(float("nan"), float("inf"), float("nan")),
        evidence=(Evidence(HOSTILE, HOSTILE),),
        copies=(copy,),
        graph_id=HOSTILE,
        modules=(HOSTILE, "x" * 5000),
    )
    span = LayoutSpan(HOSTILE, Phase.FORWARD, HOSTILE, 1, 10, 1, 5)
    point = RooflinePoint(HOSTILE, site, Phase.FORWARD, HOSTILE, 1, 1000, 10, float("nan"))
    return replace(
        sample_advice(),
        target=HOSTILE,
        environment=replace(
            ENVIRONMENT,
            device_name=HOSTILE,
            bandwidth_bytes_per_s=float("inf"),
            peak_flops=(PeakFlops("float32", 1e9),),
        ),
        graphs=(GraphSummary(HOSTILE, HOSTILE, False, 1, (span,), (point,)),),
        findings=(finding,),
        refusals=(Refusal(HOSTILE, HOSTILE, (HOSTILE,), site),),
        copies=(copy,),
        observed=(replace(copy, basis=Basis.OBSERVED),),
        totals=Totals(1, 2, 10, float("nan"), 0),
        autopilot=(
            AutopilotSearch(
                HOSTILE,
                HOSTILE,
                7.0,
                (TriedCandidate(HOSTILE, "rejected", HOSTILE, float("inf")),),
                HOSTILE,
                HOSTILE,
            ),
        ),
    )


def sample_cards() -> dict[str, RuleCard]:
    return {
        code: RuleCard(
            code=code,
            name=name,
            title=title,
            what=f"What {name} is.",
            why="A copy moves every byte twice.\n\nAnd again in the backward.",
            fix="Store the tensor in the layout that its reader wants.",
            example=Example(before="y = conv(x)  # <copies>", after="y = conv(x.to(memory_format=channels_last))"),
            safety="Values are unchanged; strides of the output are not.",
            effort=Effort.ONE_LINE,
            risk=Risk.LOW,
            references=("https://docs.pytorch.org/docs/stable/tensor_attributes.html",),
        )
        for code, name, title in (
            ("FRX001", "hidden_copy", "An operator copies its operand inside"),
            ("FRX002", "contiguous_churn", "A tensor is copied again and again"),
            ("FRX007", "weight_reconversion", "A parameter is converted on every call"),
        )
    }


@pytest.fixture(scope="session")
def advice() -> Advice:
    return sample_advice()


@pytest.fixture(scope="session")
def observed() -> Advice:
    return observed_advice()


@pytest.fixture(scope="session")
def empty() -> Advice:
    return empty_advice()


@pytest.fixture(scope="session")
def failed() -> Advice:
    return failed_advice()


@pytest.fixture(scope="session")
def hostile() -> Advice:
    return hostile_advice()


@pytest.fixture(scope="session")
def cards() -> dict[str, RuleCard]:
    return sample_cards()


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], None]:
    """Compares a rendering with the file that holds what it should be.

    `FRX_GOLDEN=write pytest tests/report` writes the files anew; look at the difference before committing it.
    """

    def compare(name: str, actual: str) -> None:
        path = GOLDEN / name
        if os.environ.get("FRX_GOLDEN") == "write":
            path.write_bytes(actual.encode("utf-8"))
        assert path.read_bytes().decode("utf-8") == actual, f"golden/{name} differs"

    return compare
