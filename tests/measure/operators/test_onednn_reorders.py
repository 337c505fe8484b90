from pathlib import Path

import pytest

from frx_graph.evidence.onednn import parse_log
from frx_graph.measure.operators.onednn_reorders import LayoutReorder, find_layout_reorders

LOGS = Path(__file__).parents[2] / "data" / "onednn"


def reorders(file: str, title: str) -> tuple[LayoutReorder, ...]:
    _, _, rest = (LOGS / file).read_text().partition(f"# {title}\n")
    return find_layout_reorders(parse_log(rest.partition("\n#")[0]))


def summary(found: tuple[LayoutReorder, ...]) -> list[tuple[str, str, bool]]:
    return [(r.role, r.argument, r.result) for r in found]


FORWARD = [("input", "src", False), ("weight", "wei", False), ("output", "dst", True)]
BACKWARD = [
    ("input", "dst", False),
    ("weight", "wei", False),
    ("output", "src", True),
    ("input", "dst", False),
    ("input", "src", False),
    ("weight", "wei", True),
]


@pytest.mark.parametrize(
    "title",
    [
        "grouped",
        "depthwise",
        "pointwise",
        "grouped volume",
        "bfloat16",
        "transposed",
        "transposed, grouped",
    ],
)
def test_roles_of_a_training_step(title: str) -> None:
    """Depthwise has operands of equal shape and format on both sides; transposed stores its weight the other way."""
    assert summary(reorders("onednn-3.13.3.log", title)) == FORWARD + BACKWARD


def test_channels_last_converts_only_the_weight() -> None:
    found = reorders("onednn-3.13.3.log", "channels last")
    assert {r.role for r in found} == {"weight"}
    assert (found[0].source, found[0].target, found[0].shape) == ("acdb", "Acdb64a", (128, 64, 3, 3))


def test_a_first_layer_reads_plain_input_and_writes_blocked() -> None:
    forward = summary(reorders("onednn-3.12.0.log", "first layer"))[:2]
    assert forward == [("weight", "wei", False), ("output", "dst", True)]


def test_recurrent_weights_are_weights() -> None:
    assert [r.role for r in reorders("onednn-3.13.3.log", "lstm")] == ["weight", "weight"]


def test_a_grouped_weight_has_its_groups_in_front() -> None:
    weight = reorders("onednn-3.13.3.log", "grouped")[1]
    assert (weight.shape, weight.itemsize) == ((4, 16, 8, 3, 3), 4)


def reorder_line(source: str, target: str, problem: str = "2x8") -> str:
    return (
        f"onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:{source}::f0 dst:{target}::f0,"
        f"attr-scratchpad:user,,{problem},0.1"
    )


@pytest.mark.parametrize(
    "line",
    [
        reorder_line("f32::blocked:ab", "f32::blocked:ab"),
        reorder_line("f32::blocked:a", "f32::blocked:a", "64"),
        reorder_line("f32::blocked:ab", "bf16::blocked:ba"),
        reorder_line("f32::blocked:ab", "s8::blocked:ab"),
        reorder_line("f32::blocked:ab", "f32::blocked:ba", "0x8"),
    ],
    ids=["same format", "bias", "conversion and layout", "quantisation", "nothing to copy"],
)
def test_non_layout_copies_are_ignored(line: str) -> None:
    assert find_layout_reorders(parse_log(line)) == ()


def test_a_lone_reorder_is_an_input() -> None:
    (found,) = find_layout_reorders(parse_log(reorder_line("f32::blocked:ab", "f32::blocked:ba")))
    assert (found.role, found.result, found.shape) == ("input", False, (2, 8))


def test_other_strides_are_another_layout() -> None:
    source = "f32::blocked:ab:16x1"
    line = reorder_line(source, "f32::blocked:ab").replace(f"{source}::f0", f"{source}:f0")
    (found,) = find_layout_reorders(parse_log(line))
    assert (found.source, found.target) == ("ab:16x1", "ab")
