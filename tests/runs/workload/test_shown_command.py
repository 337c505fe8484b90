from __future__ import annotations

import pytest

from frx_graph.runs.workload.shown_command import REDACTED, without_secrets


def test_secrets_on_the_command_line_are_not_kept() -> None:
    command = ["train.py", "--api-key", "k1", "--hf_token=k2", "WANDB_API_KEY=k3", "--password", "--lr", "0.1"]
    assert without_secrets(command) == (
        "train.py", "--api-key", REDACTED, f"--hf_token={REDACTED}", f"WANDB_API_KEY={REDACTED}", "--password",
        "--lr", "0.1",
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        ("--tokenizer", "gpt2"), ("--max-tokens", "512"), ("tokens_per_batch=4096",), ("--monkey", "x"),
        ("--secretary=me",), ("https://example.org/a@b",),
    ],
)  # fmt: skip
def test_what_is_no_secret_is_told(command: tuple[str, ...]) -> None:
    assert without_secrets(command) == command


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("--wandb_key", "k"), ("--wandb_key", REDACTED)),
        (("--auth", "k"), ("--auth", REDACTED)),
        (("--apiKey=k",), (f"--apiKey={REDACTED}",)),
        (("AWS_SECRET_ACCESS_KEY=k",), (f"AWS_SECRET_ACCESS_KEY={REDACTED}",)),
        (("https://me:pw@example.org/x",), (f"https://{REDACTED}@example.org/x",)),
        (("--url=postgresql://me:pw@host/db",), (f"--url=postgresql://{REDACTED}@host/db",)),
    ],
)
def test_secrets_in_many_forms(command: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert without_secrets(command) == shown
