from __future__ import annotations

from importlib import resources

import jsonschema
import pytest

from frx_graph.reports.render.document import to_json
from frx_graph.reports.trials.tune_report import (
    RulePart,
    TuneDocument,
    find_winner,
    render_markdown_report,
    render_tune,
)
from frx_graph.trials.configuration_trial import (
    Configuration,
    ConfigurationTrial,
    Fate,
    Gain,
    Kind,
    RunSeen,
    StepBlock,
    StepQuad,
    Tier,
)
from frx_graph.trials.samples import Cause, Disturbance
from frx_graph.trials.schedule import ABBA

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_tune_v1.schema.json").read_text(encoding="utf-8")
HOSTILE = "\x1b[31mred\x1b[0m\n[bold]second"
SEEN = RunSeen(
    exit_code=0, ending="it ends", in_time=True, steps=26, step_seconds=(0.2,) * 20, samples=160, batch_size=8,
    losses=(1.0, None), outputs=(("output_mean", None),), workers=0, batch_layouts=1, peak_bytes=1 << 30,
    memory_ratio=0.1, device_busy_percent=None, bottleneck="input_bound",
)  # fmt: skip


def trial(label: str, kind: Kind, fate: Fate, ratio: float | None = 1.193, reason: str = "", seen=SEEN):
    gain = None if ratio is None else Gain(ratio, 1.1, None, 9, 2, (1.2, 1.19), 1)
    candidate = Configuration(label, label, "dataloader", Tier.SAFE, (("FRX_NUM_WORKERS", "4"), ("B", HOSTILE)))
    blocks = tuple(StepBlock(arm, (0.1, 0.2), 16, Disturbance(Cause.LOADED, "others")) for arm in ABBA)
    quads = (StepQuad(0, 0, 0.1, True, blocks),)
    return ConfigurationTrial(kind, candidate, (), fate, reason, seen, gain, quads=quads)


def document(*trials: ConfigurationTrial, status="complete", baseline=SEEN, left_out=()) -> TuneDocument:
    return TuneDocument(
        schema="frx_tune_v1",
        id="tune-1",
        job=HOSTILE,
        command=("python", "train.py"),
        status=status,
        frx_version="1",
        settings={"max_trials": 12},
        rule=RulePart(
            minimum_speedup=0.08, alpha=0.0001, candidates=10, process_pairs=3, quads_per_pair=7, steps_per_block=10
        ),
        baseline=baseline,
        trials=trials,
        left_out=left_out,
        winner=find_winner(trials),
    )


ALL = (
    trial("dl:nw=4", Kind.RACE, Fate.RACED),
    trial("dl:nw=0", Kind.RACE, Fate.SCREENED, 1.012),
    trial("dl:nw=4", Kind.FULL, Fate.PROMOTE),
    trial("amp:fp16", Kind.FULL, Fate.REJECT, 1.28, "quality: final loss 1.2 exceeds baseline 1 by more than 5 %"),
    trial("alloc", Kind.FULL, Fate.REFUSED, None, "there is no NVIDIA GPU here", None),
    trial("dl:nw=4+x", Kind.FINAL, Fate.PROMOTE, 1.21),
)


@pytest.mark.parametrize("made", [document(*ALL), document(status="interrupted", baseline=None)])
def test_documents_are_of_the_schema_and_come_back_as_they_were(made):
    written = to_json(made)
    schema = jsonschema.Draft202012Validator(__import__("json").loads(PUBLISHED))
    schema.validate(written)
    assert TuneDocument.model_validate(written) == made
    assert written["schema"] == "frx_tune_v1"


def test_report_explains_the_recommendation_and_the_rejections():
    text = render_tune(document(*ALL, left_out=("layout: it does nothing against input_bound",)), width=80, color=False)
    for wanted in (
        "Throughput : 5 steps/sec",
        "Avg step : 200.0 ms, batch to batch",
        "GPU util : unknown",
        "Dominant stall: input_bound",
        "screened out by quicker candidates",
        "final loss 1.2 exceeds",
        "there is no NVIDIA GPU here",
        "not tried: layout",
        "Config : dl:nw=4+x",
        "+21.0% steps per second vs baseline",
        "FRX_NUM_WORKERS=4",
        "Applied: No",
    ):
        assert wanted in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text


def test_only_a_final_trial_that_was_promoted_is_a_winner():
    for last in (Fate.INCONCLUSIVE, Fate.EQUIVALENT, Fate.REJECT):
        made = document(ALL[2], trial("all", Kind.FINAL, last, 1.5, "it may be no faster at all"))
        text = render_tune(made, width=80, color=False)
        assert made.winner is None
        assert "was not confirmed: it may be no faster at all" in text
        assert "ENV VARS" not in text
    assert document(*ALL[:3]).winner is None


def test_interrupted_tune_is_marked_and_recommends_nothing():
    text = render_tune(document(*ALL[:3], status="interrupted"), width=80, color=False)
    assert "interrupted" in text
    assert "ENV VARS" not in text


def test_strangers_names_reach_no_terminal_and_no_markup():
    text = render_tune(document(*ALL), width=80, color=True)
    assert "\x1b[31mred" not in text
    assert "[bold]second" in text
    assert render_markdown_report(document(*ALL)).count("```") == 2


@pytest.mark.parametrize(
    ("fate", "said"), [(Fate.INCONCLUSIVE, "1 trial could not tell: --measure-steps"), (Fate.EQUIVALENT, "by enough\n")]
)
def test_inconclusive_trials_do_not_prove_that_nothing_helps(fate, said):
    assert said in render_tune(document(trial("dl:nw=4", Kind.FULL, fate)), width=80, color=False)
