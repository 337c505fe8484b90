"""Do predicted strides hold? Kernels against fakes, over torch's operator database and the contract's cases.

    python benchmarks/kernel_strides.py [--share 1.0] [--seed 0] [--json FILE]

Every overload is called in many strides of its operands. A difference between the kernel and its fake, or the
decomposition that Inductor traces, is noted if the shipped table lists the overload: then frx runs the kernel itself.
Exit code 1 if a difference is not noted, or a noted one is mispredicted. `--share` takes part of the calls, chosen by
`--seed`. Takes about three minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from pathlib import Path

import torch

from frx_graph.capture.stride_table import CallClass, load_stride_table
from frx_graph.measure.operators.contract_table import STRIDE_CASES
from frx_graph.measure.operators.operator_database import collect_case_calls, collect_database_calls, is_comparable
from frx_graph.measure.operators.stride_comparison import compare_strides
from frx_graph.rules.layout_operator import load_layout_operators


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    how = parser.parse_args()
    calls = [*collect_database_calls("cpu"), *collect_case_calls(STRIDE_CASES, "cpu")]
    chosen = [call for call in calls if random.Random(f"{how.seed} {call.overload}").random() < how.share]
    table = load_stride_table()
    compared, noted, unnoted, mistrusted = 0, Counter[str](), Counter[str](), Counter[str]()
    overloads: set[str] = set()
    for call in compare_strides(chosen):
        compared += 1
        overloads.add(call.target)
        if call.agrees:
            continue
        if call.target not in table.differ:
            unnoted[call.target] += 1
        elif call.kind is not CallClass.OTHER and call.kind in table.differ[call.target]:
            mistrusted[call.target] += 1
        else:
            noted[call.target] += 1
    covered = {target.rpartition(".")[0] for target in table.differ.keys() | table.same}
    missing = sorted(name for name in load_layout_operators() if name not in covered and _can_be_compared(name))
    print(f"{compared} calls of {len(overloads)} overloads")
    print(f"{noted.total()} differ, of {len(noted)} overloads, all listed")
    print(f"{unnoted.total()} differ and are not listed: {', '.join(sorted(unnoted)) or 'none'}")
    print(f"{mistrusted.total()} differ in a class that is listed as equal: {', '.join(sorted(mistrusted)) or 'none'}")
    print(f"operators of the layout table that were never compared: {', '.join(missing) or 'none'}")
    if how.json is not None:
        document = {
            "calls": compared,
            "overloads": len(overloads),
            "noted": noted,
            "unnoted": unnoted,
            "mistrusted": mistrusted,
            "never_compared": missing,
        }
        how.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 1 if unnoted or mistrusted else 0


def _can_be_compared(name: str) -> bool:
    """Return True for operators that make new tensors here: not views, and not parts of other devices."""
    namespace, _, packet = name.partition(".")
    found = getattr(torch.ops.aten, packet, None) if namespace == "aten" else None
    if found is None or name.partition("_")[0].removeprefix("aten.") in ("cudnn", "miopen"):
        return False
    return any(is_comparable(getattr(found, overload)) for overload in found.overloads())


if __name__ == "__main__":
    sys.exit(main())
