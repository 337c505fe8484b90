"""The policy, checked where it enters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from frx_graph.errors import PolicyError
from frx_graph.records import Risk
from frx_graph.trials.policy import TUNE_POLICY, TrialPolicy, parse_policy, read_policy

OTHER_VALUES: dict[str, Any] = {
    "minimum_speedup": 0.05,
    "memory_headroom": 0.2,
    "weight_copies": 1.0,
    "time_budget_seconds": 60,
    "risk": "low",
    "numerics_multiplier": 2.5,
    "numerics_multiplier_half": 4,
    "process_pairs": 9,
    "pair_agreement": "direction",
    "quads_per_pair": 8,
    "steps_per_block": 9,
    "void_quads_allowed": 3,
    "patience_seconds": 60.0,
    "alpha": 0.01,
    "process_bias": 0.03,
    "extra_process_pairs": 4,
    "in_process_extra": 0.2,
    "seed": 1,
    "canary_interval_steps": 1000,
    "agreement_seconds": 30.0,
    "decision_max_age_days": 7,
}


def written(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "{}"])
def test_a_policy_without_keys_has_all_defaults(tmp_path: Path, text: str) -> None:
    assert read_policy(written(tmp_path, text)) == TrialPolicy()


def test_every_key_can_be_written_in_yaml(tmp_path: Path) -> None:
    policy = read_policy(written(tmp_path, "".join(f"{key}: {value}\n" for key, value in OTHER_VALUES.items())))
    assert policy == TrialPolicy(**OTHER_VALUES)
    assert policy.model_fields_set == set(TrialPolicy.model_fields)
    assert policy.risk is Risk.LOW


def test_exponents_that_yaml_takes_for_text_are_numbers(tmp_path: Path) -> None:
    assert read_policy(written(tmp_path, "alpha: 1e-4")).alpha == 1e-4


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("minimum_speed: 0.1", "unknown key 'minimum_speed'", "did you mean 'minimum_speedup'?"),
        ("zzz: 1", "unknown key 'zzz'", "known keys: minimum_speedup, memory_headroom, "),
        ("7: 1", "unknown key 7", "known keys: "),
        (
            "minimum_speedup: -1",
            "minimum_speedup is -1: Input should be greater than 0",
            "minimum_speedup: smallest gain worth a change",
        ),
        ("alpha: .nan", "alpha is nan: Input should be ", "alpha: probability of a false positive"),
        ("seed: true", "seed is True: Input should not be true or false", "seed: of the order"),
        ("alpha: false", "alpha is False: Input should not be true or false", "alpha: probability"),
        ("risk: none", "risk is 'none': Input should be 'LOW', 'MEDIUM' or 'HIGH'", "risk: highest tier"),
        (
            "process_pairs: 1",
            "process_pairs is 1: Input should be greater than or equal to 2",
            "process_pairs: pairs of fresh processes",
        ),
        (
            "quads_per_pair: 2.5",
            "quads_per_pair is 2.5: Input should be a valid integer, got a number with a fractional part",
            "quads_per_pair: quads of four blocks",
        ),
        (
            "{process_pairs: 2, quads_per_pair: 2}",
            "process_pairs times quads_per_pair must be at least 5",
            "raise one of them",
        ),
        ("time_budget_seconds:", "time_budget_seconds is None: Input should be a valid number", "time_budget_sec"),
        ("- alpha", " holds a list, no keys", "write lines of 'key: value'"),
        ("seed: 2001-13-45", " has a value that cannot be read: ValueError: month must be in 1..12", "write lines of"),
        ("seed: !!timestamp perhaps", " has a value that cannot be read: AttributeError: ", "write lines of"),
        ("seed: !!bool perhaps", " has a value that cannot be read: KeyError: ", "write lines of"),
        ("[" * 3000 + "]" * 3000, " has a value that cannot be read: RecursionError: ", "write lines of"),
        (
            "alpha: [1\n",
            ", line 2, column 1 is not YAML: expected ',' or ']', but got '<stream end>'",
            "write lines of 'key: value'",
        ),
    ],
)
def test_a_wrong_policy_names_the_place_and_what_to_do(tmp_path: Path, text: str, message: str, hint: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(PolicyError) as caught:
        read_policy(path)
    assert caught.value.message.removeprefix(f"policy {path}").removeprefix(": ").startswith(message)
    assert caught.value.hint.startswith(hint)


def test_non_text_or_missing_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"missing\.yaml cannot be read: No such file"):
        read_policy(tmp_path / "missing.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="binary is not text in UTF-8"):
        read_policy(tmp_path / "binary")


def test_mapping_error_names_its_location() -> None:
    assert parse_policy({"alpha": 0.01}, "[tool.frx.policy]") == TrialPolicy(alpha=0.01)
    with pytest.raises(PolicyError, match=re.escape("[tool.frx.policy]: unknown key 'alfa' (did you mean 'alpha'?)")):
        parse_policy({"alfa": 0.01}, "[tool.frx.policy]")


def test_a_policy_stays_as_it_is() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        TrialPolicy().seed = 1  # type: ignore[misc]


def test_every_field_has_a_description() -> None:
    assert [name for name, field in TrialPolicy.model_fields.items() if not field.description] == []


def test_equal_policies_have_one_hash_and_each_key_changes_it() -> None:
    assert set(OTHER_VALUES) == set(TrialPolicy.model_fields)
    one_changed = [TrialPolicy(**{key: value}).hash for key, value in OTHER_VALUES.items()]
    hashes = {TrialPolicy().hash, *one_changed}
    assert len(hashes) == len(OTHER_VALUES) + 1
    assert all(re.fullmatch(r"[0-9a-f]{16}", text) for text in hashes)
    written_out = {key: int(value) if value == 600 else value for key, value in TrialPolicy().model_dump().items()}
    assert TrialPolicy(**written_out).hash == TrialPolicy().hash


def test_a_hash_is_the_same_on_every_machine() -> None:
    # It changes with every field and default: what was decided under one policy does not look like another's.
    assert TrialPolicy().hash == "e2ecc620589df4f8"


def test_the_policy_of_tune_asks_for_more_and_for_less_of_each_pair() -> None:
    policy, default = TUNE_POLICY, TrialPolicy()
    assert policy.minimum_speedup == 0.08 > default.minimum_speedup
    assert (policy.pair_agreement, default.pair_agreement) == ("direction", "half")
