"""Compare advice for GPUs that are not here with public traces of the same networks on such GPUs.

    python benchmarks/advice_for_gpu.py FOLDER [--json FILE] [--networks resnet18,alexnet]

FOLDER has the traces, named as in `TRACES`: they are not part of this project. For each convolution, the conversion
kernels that it launched (`nchwToNhwcKernel`, `nhwcToNchwKernel`) are compared with those that the advice predicts, by
direction. Other layout copies are compared by the rule that reports them, and the shape of what is copied. A
convolution whose conversions the advice
calls unknown counts for neither precision nor recall, and is listed. Exit code 1 if recall is below 90 % or precision
below 80 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from tabulate import tabulate

from frx_graph.advisor.absent_gpu import describe_absent, load_on_absent_gpu, place_on_absent_gpu
from frx_graph.advisor.advisor import load_documented
from frx_graph.analyzers.trace.copies import TraceCopy, find_copies
from frx_graph.analyzers.trace.kernel_names import KernelClass, classify_kernel
from frx_graph.analyzers.trace.operators import iterate_upwards
from frx_graph.capture.absent_gpu import capture_for
from frx_graph.capture.model import capture_model
from frx_graph.evidence.trace.torch_trace import read_torch_trace
from frx_graph.evidence.trace.tree import NONE, TraceTree, build_tree
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.copies.prediction import find_unknown_operators, predict_copies
from frx_graph.records import Copy, CopyKind, OperandRole
from frx_graph.rules.gpu_profile import require_gpu

NETWORKS = Path(__file__).parent / "traced_networks.py"
CONVOLUTIONS = ("aten::cudnn_convolution", "aten::_conv_depthwise2d", "aten::cudnn_convolution_transpose")
RECALL, PRECISION = 0.9, 0.8
CONVERSIONS = "FRX001, FRX007: conversions"
"""Of images and results, and of weights. A trace does not tell an image's kernel from a weight's."""
HIDDEN, REQUESTED = "FRX001: copies in operators", "FRX002: requested copies, reshapes"
RULES = {CopyKind.OPERATOR: HIDDEN, CopyKind.EXPLICIT: REQUESTED, CopyKind.RESHAPE: REQUESTED}
Copied = Counter[tuple[str, tuple[int, ...]]]
"""Number of copies by rule and shape."""


@dataclass(frozen=True)
class Trace:
    """A trace in FOLDER, where it is published, and what it shows. `calls` of the network are in it."""

    file: str
    published: str
    network: str
    gpu: str
    dtype: str
    calls: int = 1


TRACES = (
    Trace(
        "resnet18-tf32-1.json",
        "anshulk-cmu/HDAI---cuDNN-Profiling 29db9ca8bd8f results/traces/resnet18_baseline_bs32_benchOn.json",
        "resnet18",
        "RTX 5070 Ti",
        "float32",
        10,
    ),
    Trace(
        "resnet18-tf32-2.json",
        "anshulk-cmu/HDAI---cuDNN-Profiling 29db9ca8bd8f results/traces/resnet18_baseline.json",
        "resnet18",
        "RTX 5070 Ti",
        "float32",
        10,
    ),
    Trace(
        "alexnet-tf32.json.gz",
        "facebookresearch/HolisticTraceAnalysis f4d0062c tests/data/critical_path/alexnet/"
        "benchmark_result_2869224_1695835535_trace.json.gz",
        "alexnet",
        "A100 40GB",
        "float32",
        2,
    ),
    Trace(
        "vgg16-tf32.json",
        "Xarlley/Triton-Pass-Analysis 4fb4c2bc Document/IR-Trace/nir_lif_kernel/chrome_trace.json",
        "vgg16",
        "RTX 5070 Ti",
        "float32",
    ),
    Trace(
        "vit-bf16.json.gz",
        "AMD-AGI/TraceLens 171dd747 tests/traces/h100/Falconsai_nsfw_image_detection__1016002.json.gz",
        "vit_base",
        "H100",
        "bfloat16",
    ),
    Trace(
        "timesformer-bf16.json.gz",
        "AMD-AGI/TraceLens 171dd747 tests/traces/h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
        "timesformer",
        "H100",
        "bfloat16",
    ),
    Trace(
        "owlv2-bf16.json.gz",
        "AMD-AGI/TraceLens 171dd747 tests/traces/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
        "owlv2_large",
        "H100",
        "bfloat16",
        5,
    ),
    Trace(
        "qwen-bf16.json.gz",
        "AMD-AGI/TraceLens 171dd747 tests/traces/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        "qwen",
        "H100",
        "bfloat16",
    ),
    Trace(
        "bert-bf16.json.gz",
        "AMD-AGI/TraceLens 171dd747 tests/traces/h100/gaunernst_bert-small-uncased__1016001.json.gz",
        "bert_small",
        "H100",
        "bfloat16",
    ),
    Trace(
        "distilbert-float32.json",
        "anshulk-cmu/HDAI---cuDNN-Profiling 29db9ca8bd8f results/traces/distilbert_baseline_bs8_benchOn.json",
        "distilbert",
        "RTX 5070 Ti",
        "float32",
        10,
    ),
    Trace(
        "resnet50-float32.json.gz",
        "pytorch/kineto tb_plugin/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
        "resnet50",
        "V100",
        "float32",
        6,
    ),
)


@dataclass
class Tally:
    """Conversions, or copies, a call. `unknown` are those seen where the advice says that it does not know."""

    predicted: float = 0.0
    seen: float = 0.0
    both: float = 0.0
    unknown: float = 0.0

    def add(self, other: Tally) -> None:
        """Add the counts of another."""
        self.predicted += other.predicted
        self.seen += other.seen
        self.both += other.both
        self.unknown += other.unknown


@dataclass
class Row:
    """One trace. `copies` are by rule. `different` describes each convolution, or shape, in which advice and trace
    differ."""

    network: str
    gpu: str
    dtype: str
    published: str
    conversions: Tally = field(default_factory=Tally)
    copies: dict[str, Tally] = field(default_factory=lambda: {HIDDEN: Tally(), REQUESTED: Tally()})
    different: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Convolution:
    """A convolution of the captured graph: its operands' shapes, and the conversions predicted, to channels-last and
    back; None: unknown."""

    image: tuple[int, ...]
    weight: tuple[int, ...]
    conversions: tuple[int, int] | None


def predict(trace: Trace) -> tuple[list[Convolution], Copied]:
    """Return the convolutions of a network in order, and its other copies, as the advice predicts them."""
    gpu, dtype = require_gpu(trace.gpu), getattr(torch, trace.dtype)
    workload = load_on_absent_gpu(f"{NETWORKS}:{trace.network}", dtype)
    absent = place_on_absent_gpu(workload.model, workload.args, workload.kwargs, dtype)
    with absent.mode, capture_for(describe_absent(gpu)), torch.no_grad():
        capture = capture_model(absent.model, absent.args, absent.kwargs, train=False, as_eager=True)
    if capture.failures:
        raise RuntimeError(f"{trace.network}: {capture.failures}")
    contract = load_documented(gpu)
    convolutions: list[Convolution] = []
    copied: Copied = Counter()
    for graph in capture.graphs:
        facts = build_graph_facts(graph)
        copies = predict_copies(facts, {}, contract)
        unknown = {op.node for op in find_unknown_operators(facts, {}, contract)}
        convolutions += _list_convolutions(facts, copies, unknown)
        for copy in copies:
            if copy.kind is not CopyKind.REORDER:
                copied[RULES[copy.kind], tuple(facts.values[copy.value].shape)] += copy.count
    return convolutions, copied


def _list_convolutions(facts: GraphFacts, copies: Sequence[Copy], unknown: set[str]) -> Iterator[Convolution]:
    by_node: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for copy in copies:
        if copy.kind is CopyKind.REORDER:
            by_node[copy.node][copy.role is OperandRole.OUTPUT] += copy.count
    for op in facts.ops:
        if op.operator == "aten.convolution":
            image, weight = (tuple(facts.values[name].shape) for name in op.inputs[:2])
            made = by_node[op.node]
            yield Convolution(image, weight, None if op.node in unknown else (made[0], made[1]))


@dataclass(frozen=True)
class SeenConvolution:
    """A convolution of a trace: its operands' shapes, if recorded, and its conversions."""

    shapes: tuple[tuple[int, ...], ...]
    conversions: tuple[int, int]


def observe(path: Path) -> tuple[list[SeenConvolution], Copied, int]:
    """Return the convolutions of a trace in order, its other copies, and how many conversions belong to none
    of them."""
    tree = build_tree(read_torch_trace(path))
    copies = find_copies(tree)
    calls = [index for index, operator in enumerate(tree.operators) if operator.name in CONVOLUTIONS]
    calls.sort(key=lambda index: tree.operators[index].start_ns)
    known = set(calls)
    made: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    elsewhere = 0
    copied: Copied = Counter()
    for copy in copies:
        if copy.kind is CopyKind.REORDER:
            call = next((index for index in iterate_upwards(tree, copy.maker) if index in known), NONE)
            if call == NONE:
                elsewhere += 1
            else:
                made[call][_goes_back(tree, copy)] += 1
        elif copy.operand is not None and not _is_for_data(tree, copy.maker):
            copied[RULES[copy.kind], copy.operand.shape] += 1
    seen = [SeenConvolution(_get_shapes(tree, call), (made[call][0], made[call][1])) for call in calls]
    return seen, copied, elsewhere


def _goes_back(tree: TraceTree, copy: TraceCopy) -> bool:
    return classify_kernel(tree.activities[copy.activities[0]].name) is KernelClass.FROM_CHANNELS_LAST


def _is_for_data(tree: TraceTree, operator: int) -> bool:
    names = (tree.operators[index].name for index in iterate_upwards(tree, operator))
    return any(name.startswith("enumerate(DataLoader)") for name in names)


def _get_shapes(tree: TraceTree, call: int) -> tuple[tuple[int, ...], ...]:
    return tuple(one.shape for one in (tree.operators[call].operands or ())[:2] if one is not None)


def compare(trace: Trace, path: Path) -> Row:
    """Return the row of a trace. Raises `RuntimeError` if it is of another network."""
    row = Row(trace.network, trace.gpu, trace.dtype, trace.published)
    convolutions, copied = predict(trace)
    seen, seen_copies, elsewhere = observe(path)
    if len(seen) != trace.calls * len(convolutions):
        raise RuntimeError(f"{path.name}: {len(seen)} convolutions, expected {trace.calls} x {len(convolutions)}")
    row.conversions.seen += elsewhere / trace.calls
    different: Counter[str] = Counter()
    for number, one in enumerate(seen):
        expected = convolutions[number % len(convolutions)]
        if one.shapes and one.shapes != (expected.image, expected.weight):
            raise RuntimeError(f"{path.name}: convolution {number} is {one.shapes}, expected {expected}")
        row.conversions.add(_compare_convolution(expected, one.conversions, trace.calls))
        if expected.conversions != one.conversions and (expected.conversions or any(one.conversions)):
            different[_describe(expected, one.conversions)] += 1
    row.different = [f"{text} ({count} of {trace.calls} calls)" for text, count in different.items()]
    for rule, shape in sorted({*copied, *seen_copies}):
        predicted, there = copied[rule, shape], seen_copies[rule, shape] / trace.calls
        row.copies[rule].add(Tally(predicted, there, min(predicted, there)))
        if predicted != there:
            row.different.append(f"{rule} of {'x'.join(map(str, shape))}: predicted {predicted}, there {there:g}")
    return row


def _compare_convolution(expected: Convolution, seen: tuple[int, int], calls: int) -> Tally:
    if expected.conversions is None:
        return Tally(unknown=sum(seen) / calls)
    both = sum(map(min, expected.conversions, seen))
    return Tally(sum(expected.conversions) / calls, sum(seen) / calls, both / calls)


def _describe(expected: Convolution, seen: tuple[int, int]) -> str:
    predicted = "unknown" if expected.conversions is None else "{} in, {} out".format(*expected.conversions)
    shape = "x".join(map(str, expected.weight))
    return f"weight {shape}: predicted {predicted}, there {seen[0]} in, {seen[1]} out"


def main() -> int:
    """Compare all traces, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", help="only these, separated by commas")
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    wanted = None if asked.networks is None else set(asked.networks.split(","))
    rows = [compare(trace, asked.folder / trace.file) for trace in TRACES if wanted is None or trace.network in wanted]
    by_rule = {CONVERSIONS: Tally(), HIDDEN: Tally(), REQUESTED: Tally()}
    table = []
    for row in rows:
        copies = Tally()
        for rule, tally in row.copies.items():
            by_rule[rule].add(tally)
            copies.add(tally)
        by_rule[CONVERSIONS].add(row.conversions)
        table.append((row.network, row.gpu, row.dtype, *_format(row.conversions), *_format(copies)[:3]))
    heads = [
        "network",
        "GPU",
        "dtype",
        "predicted",
        "observed",
        "matched",
        "where unknown",
        "copies predicted",
        "observed",
        "matched",
    ]
    print(tabulate(table, heads))
    for row in rows:
        for text in row.different:
            print(f"{row.network}, {row.gpu}: {text}")
    passed = True
    for name, tally in by_rule.items():
        if not (tally.seen or tally.predicted):
            print(f"{name}: none")
            continue
        recall, precision = tally.both / max(tally.seen, 1), tally.both / max(tally.predicted, 1)
        passed = passed and recall >= RECALL and precision >= PRECISION
        everywhere = tally.both / max(tally.seen + tally.unknown, 1)
        print(f"{name}: recall {recall:.1%}, precision {precision:.1%}; recall with unknown ones {everywhere:.1%}")
    if asked.json is not None:
        document = {"torch": torch.__version__, "rows": list(map(asdict, rows))}
        asked.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if passed else 1


def _format(tally: Tally) -> tuple[float, float, float, float]:
    return (round(tally.predicted, 1), round(tally.seen, 1), round(tally.both, 1), round(tally.unknown, 1))


if __name__ == "__main__":
    sys.exit(main())
