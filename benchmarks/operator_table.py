"""Holds every row of the operator table against torch on one device.

`python benchmarks/operator_table.py --device cuda`: rows that were measured on another kind of device are tried as if
they held here, too, so that it shows which of them do; those of operators that need another device are left out. One
line a contradiction; the exit status is 1 if a row is contradicted that claims to hold on this device.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from operator_samples.observation import observe, sample_calls
from operator_samples.sample import OperatorSample
from operator_samples.verification import contradictions

from frx_graph.rules.layout_operator import LayoutOperator, load_layout_operators


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one row. `claimed` is true if it says that it holds on the device."""

    row: LayoutOperator
    claimed: bool
    contradictions: tuple[str, ...]


def outcomes(
    rows: Iterable[LayoutOperator], samples: Mapping[str, tuple[OperatorSample, ...]], device: str
) -> Iterator[Outcome]:
    """One for each row; a row without sample calls, or of an operator that does not run, is contradicted by that."""
    for row in rows:
        claimed = row.devices is None or device in row.devices
        everywhere = row.model_copy(update={"devices": None})
        try:
            found = contradictions(everywhere, observe(everywhere, samples.get(row.operator, ())), device=device)
        except RuntimeError as error:
            found = (f"does not run: {str(error).splitlines()[0]}",)
        yield Outcome(row, claimed, found)


def main(arguments: list[str] | None = None) -> int:
    """Print the contradictions and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--operator", action="append", help="only this one (aten.cat); can be given more than once")
    options = parser.parse_args(arguments)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    samples = sample_calls(options.device)
    rows = [
        row
        for row in load_layout_operators().values()
        if (options.operator is None or row.operator in options.operator)
        and (row.only_on is None or row.operator in samples)
    ]
    found = list(outcomes(rows, samples, options.device))
    for outcome in found:
        for line in outcome.contradictions:
            print(f"{outcome.row.operator}{'' if outcome.claimed else ' (not claimed)'}: {line}")
    wrong = sum(bool(outcome.contradictions) for outcome in found if outcome.claimed)
    unclaimed = [outcome for outcome in found if not outcome.claimed]
    holding = sum(not outcome.contradictions for outcome in unclaimed)
    print(
        f"{options.device}, torch {torch.__version__}: of {len(found) - len(unclaimed)} rows that claim to hold here "
        f"{wrong} are contradicted; of {len(unclaimed)} others {holding} hold too"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
