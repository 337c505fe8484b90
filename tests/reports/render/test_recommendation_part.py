"""The command that measures again measures what the advice is judged by."""

from __future__ import annotations

import inspect
import re
import shlex

import pytest

from frx_graph.analyzers.kernels import labels, ptx_analysis
from frx_graph.analyzers.kernels.recommendations import LABEL_TITLES, get_label_title
from frx_graph.evidence.ncu.presets import PRESETS
from frx_graph.reports.render.recommendation_part import build_rerun_command
from frx_graph.rules.recommendation_card import index_cards_by_label

LABELS = {
    found
    for module in (labels, ptx_analysis)
    for found in re.findall(r'"(\w+)"', inspect.getsource(module))
    if found in index_cards_by_label()
}


@pytest.mark.parametrize("label", sorted(label for label in LABELS if not label.startswith("ptx_")))
def test_every_metric_of_the_cards_is_measured(label: str) -> None:
    preset = PRESETS[shlex.split(build_rerun_command(label))[3]]
    for card in index_cards_by_label()[label]:
        for step in card.validation:
            stalled = step.value.startswith("stall_") and preset.stalls
            assert stalled or step.value in preset.metrics, (card.id, preset.name)


def test_what_is_not_known_asks_for_everything() -> None:
    assert build_rerun_command(None) == "frx profile --preset full -- ./your_app"
    assert shlex.split(build_rerun_command("ptx_fp64_usage", ("--", "a b")))[3:] == ["full", "--", "a b"]


def test_labels_have_titles() -> None:
    of_runs = {label for label in index_cards_by_label() if label in LABEL_TITLES} - LABELS
    assert set(LABEL_TITLES) == LABELS | of_runs
    assert set(index_cards_by_label()) <= set(LABEL_TITLES)
    assert get_label_title("new_label") == "new_label"
