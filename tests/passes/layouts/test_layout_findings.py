"""Findings of layout changes name modules as few patterns."""

import pytest

from frx_graph.passes.layouts.layout_findings import merge_module_paths

BLOCKS = [f"model.layer3.{block}.conv{number}" for block in range(6) for number in (1, 2)]


@pytest.mark.parametrize(
    ("paths", "others", "patterns"),
    [
        (BLOCKS, ["model.conv1", "model.layer4.0.conv1"], ("model.layer3.*.conv1", "model.layer3.*.conv2")),
        (BLOCKS[::2], BLOCKS[1::2], ("model.layer3.*.conv1",)),
        (BLOCKS[2::2], BLOCKS[:1], tuple(BLOCKS[2::2])),
        (["model.layer1.0.conv1", "model.layer1.1.conv1", "model.layer2.0.conv1", "model.layer2.1.conv1"], [],
         ("model.*.*.conv1",)),
        (["model.a.0.conv", "model.a.1.conv", "model.b.0.conv"], ["model.b.1.conv"],
         ("model.*.0.conv", "model.a.1.conv")),
        (["net.0", "net.2", "net.4"], ["net.6"], ("net.0", "net.2", "net.4")),
        (["net.0", "net.0"], [], ("net.0",)),
        (["net.0.conv", "net.1.conv", "net.1.conv.inner"], [], ("net.*.conv", "net.1.conv.inner")),
        ([], ["net.0"], ()),
    ],
)  # fmt: skip
def test_patterns_name_these_modules_and_no_others(
    paths: list[str], others: list[str], patterns: tuple[str, ...]
) -> None:
    assert merge_module_paths(paths, others) == patterns
