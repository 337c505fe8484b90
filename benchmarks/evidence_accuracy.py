"""Are real exports of Nsight Compute read rightly, and how fast?

    python benchmarks/evidence_accuracy.py FOLDER [--megabytes 200] [--json FILE]

FOLDER holds exports and binary reports that somebody else has made, `*.csv` and `*.ncu-rep`. For each, every headline
metric is compared with what the file itself says, read here once more in the plainest way; the verdict with that of
Nsight Compute's own rule, where the file has its words; and what limits occupancy with the smallest of the file's block
limits. Then an export of that many megabytes is made and read, each form in a process of its own, for megabytes a
second and the most memory. A row of the wide one has 200 counters, of which a quarter is used.

Exit code 1 where something is read otherwise, or slower than 50 MB/s.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path

from ncu_exports import RAW, SOL, Launch, long_export, metric, wide_export
from tabulate import tabulate

from frx_graph.analyzers.kernels.kernel_totals import KernelTotals
from frx_graph.analyzers.kernels.occupancy_model import find_limiters
from frx_graph.analyzers.kernels.speed_of_light import Bound, judge_speed_of_light
from frx_graph.evidence.ncu.csv_file import read_ncu_csv
from frx_graph.evidence.ncu.launch import KernelLaunch
from frx_graph.evidence.ncu.metrics import METRICS
from frx_graph.evidence.ncu.report_file import read_ncu_report

LEAST_MB_PER_S = 50.0
_COLUMNS = 200
_FACTORS: dict[str, Decimal | int] = {"": 1, "%": 1, "byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9}
_FACTORS |= {"Mbyte/s": 10**6, "Gbyte/s": 10**9, "Mhz": 10**6, "Ghz": 10**9}
_FACTORS |= {"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "ms": Decimal("1e-3")}
_SAID = {
    "low compute throughput and memory bandwidth": Bound.LATENCY,
    "grid is too small": Bound.LATENCY,
    "Memory is more heavily utilized than Compute": Bound.MEMORY,
    "Compute is more heavily utilized than Memory": Bound.COMPUTE,
    "well-balanced": Bound.BALANCED,
}
"""What the rule SOLBottleneck says of each."""
_PEAK = "greater than 80.0% of the available"
_LIMITS = {"Registers": "registers", "Shared Mem": "shared memory", "Warps": "warps", "SM": "blocks"}
_LIMITS |= {"Barriers": "barriers"}
_LIMITS = {f"Block Limit {name}": limit for name, limit in _LIMITS.items()}
_LIMITS |= {
    f"launch__occupancy_limit_{name}": limit
    for name, limit in {
        "shared_mem": "shared memory",
        **{name: name for name in ("registers", "warps", "blocks")},
    }.items()
}
_REPORT = ".ncu-rep"


@dataclass(frozen=True)
class FileResult:
    """One export. A verdict or limit is None where the file does not say."""

    name: str
    launches: int
    metrics: int
    equal: int
    verdicts: int
    verdicts_as_said: int
    limits: int
    limits_as_said: int
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Speed:
    """One reading; `peak_mb` is the process's largest resident memory, `idle_mb` what it had before."""

    form: str
    megabytes: float
    mb_per_s: float
    idle_mb: float
    peak_mb: float


def plain_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a long export, by column; nothing is interpreted."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith('"ID"'))
    table = csv.reader(lines[first:])
    header = next(table)
    for row in table:
        yield dict(zip(header, row, strict=False))


def report_rows(path: Path) -> Iterator[dict[str, str]]:
    """The same of a binary report, by NVIDIA's reader alone."""
    import ncu_report

    workloads = ncu_report.load_report(str(path)).range_by_idx(0)
    for number in range(workloads.num_actions()):
        action = workloads.action_by_idx(number)
        for name in sorted(action.metric_names()):
            found = action.metric_by_name(name)
            if found.has_value() and not isinstance(found.value(), str):
                value = {"Metric Unit": found.unit(), "Metric Value": repr(found.value())}
                yield {"ID": str(number), "Metric Name": name, **value}
        for result in action.rule_results_as_dicts():
            text = result.get("rule_message", {}).get("message", "")
            yield {"ID": str(number), "Rule Name": result["rule_identifier"], "Rule Description": text}


def judged(path: Path) -> FileResult:
    """What is read from `path`, beside what stands there."""
    launches: list[KernelLaunch] = []
    is_report = path.suffix == _REPORT
    (read_ncu_report if is_report else read_ncu_csv)(path, launches.append)
    by_number = {launch.number: launch for launch in launches}
    known = {name.lower(): metric for metric in METRICS for name in (*metric.counters, *metric.labels)}
    wrong: list[str] = []
    compared = equal = 0
    said: dict[str, str] = {}
    limits: dict[str, dict[str, Decimal]] = {}
    for row in report_rows(path) if is_report else plain_rows(path):
        name, number = row.get("Metric Name", ""), row["ID"]
        if row.get("Rule Name") == "SOLBottleneck":
            said[number] = row["Rule Description"]
        if name in _LIMITS:
            limits.setdefault(number, {})[_LIMITS[name]] = Decimal(row["Metric Value"])
        text = row.get("Metric Value", "").replace(",", "")
        if name.lower() not in known or text in ("", "n/a", "nan"):
            continue
        read = by_number[number]
        if is_report and read.names.get(known[name.lower()].name, name) != name:
            # It has the same under another name, which comes first.
            continue
        compared += 1
        value = float(Decimal(text) * _FACTORS.get(row["Metric Unit"], 1))
        found = [one for wanted, one in read.values.items() if read.names[wanted] == name]
        again = [one for one in read.values.values() if abs(one - value) <= 1e-9 * abs(value)]
        if any(abs(one - value) <= 1e-9 * abs(value) for one in found) or (not found and again):
            equal += 1
        else:
            wrong.append(f"{name}: {found} and not {value}")
    verdicts = as_said = limited = limited_as_said = 0
    for number, text in said.items():
        if (expected := _expected(text)) is None or "compute_throughput" not in by_number[number].values:
            continue
        sol = judge_speed_of_light(by_number[number].values)
        if sol.bound is Bound.UNKNOWN:
            continue
        verdicts += 1
        holds = sol.near_peak if expected == _PEAK else sol.bound == expected
        as_said += holds
        if not holds:
            wrong.append(f"verdict {sol.bound}: {text[:60]}")
    for number, named in limits.items():
        limited += 1
        smallest = {name for name, limit in named.items() if limit == min(named.values())}
        full = by_number[number].values.get("theoretical_occupancy", 0.0) >= 99.0
        holds = {str(limiter) for limiter in find_limiters(by_number[number].values)} == (set() if full else smallest)
        limited_as_said += holds
        if not holds:
            wrong.append(f"limiter of {number}")
    return FileResult(
        path.name, len(launches), compared, equal, verdicts, as_said, limited, limited_as_said, tuple(wrong)
    )


def _expected(text: str) -> str | Bound | None:
    return _PEAK if _PEAK in text else next((bound for words, bound in _SAID.items() if words in text), None)


def write_export(path: Path, form: str, megabytes: int) -> None:
    """An export of about that size, with rows as long as those of real ones."""
    names = [metric.counters[0] for metric in METRICS if metric.counters]
    kernels = [f"void kernel_{number}<float, {'int, ' * 30}4>(float const *, float *, int)" for number in range(50)]
    size, number = 0, 0
    with path.open("w", encoding="utf-8") as file:
        while size < megabytes * 10**6:
            launch = Launch(number=number, kernel=kernels[number % len(kernels)])
            if form == "long":
                rows = [
                    metric(launch, RAW, name, "", f"{number % 97}.{position:02}") for position, name in enumerate(names)
                ]
                rows.append(metric(launch, SOL, "Duration", "us", "12.34"))
                text = long_export(*rows)
            else:
                columns = [*names, *(f"other__counter_{position}.sum" for position in range(_COLUMNS - len(names)))]
                values = [f"{number % 97}.{position:03}" for position in range(_COLUMNS)]
                text = wide_export(columns, ["" for _ in columns], (launch, values))
            lines = text.splitlines(keepends=True)
            text = "".join(lines if number == 0 else lines[1 if form == "long" else 2 :])
            size += len(text)
            number += 1
            file.write(text)


def read_once(path: Path, form: str) -> Speed:
    """In this process."""
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    totals = KernelTotals()
    began = time.perf_counter()
    read_ncu_csv(path, totals.add)
    seconds = time.perf_counter() - began
    megabytes = path.stat().st_size / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return Speed(form, megabytes, megabytes / seconds, idle, peak)


def measured(megabytes: int) -> list[Speed]:
    """Each form read in a process of its own."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for form in ("long", "wide"):
            path = Path(folder) / f"{form}.csv"
            write_export(path, form, megabytes)
            command = [sys.executable, __file__, "--read", str(path), "--form", form]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600)
            found.append(Speed(**json.loads(done.stdout)))
            path.unlink()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="with exports, *.csv, and reports")
    parser.add_argument("--megabytes", type=int, default=200, help="of the export that is made; 0: none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--form", default="long", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.read is not None:
        print(json.dumps(asdict(read_once(given.read, given.form))))
        return 0
    if given.folder is None or not (files := sorted(given.folder.glob("*.csv"))):
        parser.error("which FOLDER of exports?")
    files += sorted(given.folder.glob(f"*{_REPORT}"))
    results = [judged(file) for file in files]
    rows = [
        (
            one.name,
            f"{one.equal}/{one.metrics}",
            f"{one.verdicts_as_said}/{one.verdicts}",
            f"{one.limits_as_said}/{one.limits}",
        )
        for one in results
    ]
    print(tabulate(rows, headers=["export", "metrics", "verdict", "limiter"]))
    for one in results:
        for line in one.wrong:
            print(f"WRONG: {one.name}: {line}")
    speeds = measured(given.megabytes) if given.megabytes else []
    if speeds:
        print()
        print(tabulate([asdict(speed) for speed in speeds], headers="keys", floatfmt=".1f"))
    if given.json:
        found = {"files": [asdict(one) for one in results], "speeds": [asdict(speed) for speed in speeds]}
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    slow = [speed for speed in speeds if speed.mb_per_s < LEAST_MB_PER_S]
    return 1 if slow or any(one.wrong for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
