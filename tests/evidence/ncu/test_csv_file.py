"""Nsight Compute exports of every form are read rightly, and what is none is refused with the line."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ncu_exports import MEMORY, OCCUPANCY, RAW, SOL, Launch, long_export, metric, row, wide_export

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ncu.csv_file import Form, NcuExport, read_ncu_csv
from frx_graph.evidence.ncu.launch import KernelLaunch
from frx_graph.evidence.number_format import NumberFormat

ONE = Launch()
DURATION = metric(ONE, SOL, "Duration", "us", "6.75")

Read = Callable[[str | bytes], tuple[NcuExport, list[KernelLaunch]]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(content: str | bytes) -> tuple[NcuExport, list[KernelLaunch]]:
        path = tmp_path / "report.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        launches: list[KernelLaunch] = []
        return read_ncu_csv(path, launches.append), launches

    return read


def test_a_row_is_a_metric(read: Read) -> None:
    export, (launch,) = read(
        long_export(
            DURATION,
            metric(ONE, SOL, "Compute (SM) Throughput", "%", "9.15"),
            metric(ONE, OCCUPANCY, "Block Limit Registers", "block", "2"),
            metric(ONE, RAW, "dram__bytes_read.sum", "Mbyte", "2.33"),
        )
    )
    assert (export.form, export.launches, export.number_format) == (Form.LONG, 1, NumberFormat.POINT)
    assert (launch.kernel, launch.block, launch.grid) == (ONE.kernel, (128, 1, 1), (1024, 1, 1))
    assert (launch.blocks, launch.compute_capability) == (1024, "9.0")
    assert launch.values == {
        "duration": pytest.approx(6.75e-6),
        "compute_throughput": 9.15,
        "block_limit_registers": 2.0,
        "dram_bytes_read": pytest.approx(2.33e6),
    }


def test_first_measured_of_two_columns_with_one_metric_counts(read: Read) -> None:
    names = ["gpu__time_duration.sum", "gpu__time_duration_sum", "launch__registers_per_thread"]
    rows = [(ONE, ["1.5", "2.5", "32"]), (ONE, ["n/a", "2.5", "32"]), (ONE, ["1;5", "2.5", "32"])]
    export, launches = read(wide_export(names, ["us", "us", ""], *rows))
    assert [launch.values["duration"] for launch in launches] == pytest.approx([1.5e-6, 2.5e-6, 2.5e-6])
    assert [launch.names["duration"] for launch in launches] == [names[0], names[1], names[1]]
    assert list(export.unreadable) == ["gpu__time_duration.sum: '1;5'"]


def test_one_label_in_two_units_is_two_metrics(read: Read) -> None:
    _, (launch,) = read(
        long_export(
            metric(ONE, MEMORY, "Memory Throughput", "Gbyte/s", "345.14"),
            metric(ONE, SOL, "Memory Throughput", "%", "19.66"),
        )
    )
    assert launch.values == {"dram_bandwidth": pytest.approx(345.14e9), "memory_throughput": 19.66}


def test_throughput_is_not_a_hit_rate(read: Read) -> None:
    _, (launch,) = read(
        long_export(
            metric(ONE, SOL, "L1/TEX Cache Throughput", "%", "11.55"),
            metric(ONE, MEMORY, "L1/TEX Hit Rate", "%", "40.73"),
            metric(ONE, MEMORY, "L2 Hit Rate", "%", "100.39"),
        )
    )
    assert launch.values == {"l1_throughput": 11.55, "l1_hit_rate": 40.73, "l2_hit_rate": 100.39}


@pytest.mark.parametrize(
    ("unit", "value", "seconds"),
    [("ns", "292,928", 292.928e-6), ("us", "6.75", 6.75e-6), ("msecond", "1.5", 1.5e-3), ("s", "2", 2.0)],
)
def test_durations_have_their_unit(read: Read, unit: str, value: str, seconds: float) -> None:
    _, (launch,) = read(long_export(metric(ONE, RAW, "gpu__time_duration.sum", unit, value)))
    assert launch.values["duration"] == pytest.approx(seconds)


def test_a_decimal_comma_is_none_between_thousands(read: Read) -> None:
    export, (launch,) = read(
        long_export(
            metric(ONE, RAW, "dram__bytes_read.sum", "byte", "134.221.568"),
            metric(ONE, SOL, "DRAM Throughput", "%", "65,77"),
            metric(ONE, SOL, "Duration", "ns", "9.495,42"),
        )
    )
    assert export.number_format is NumberFormat.COMMA
    assert launch.values["dram_bytes_read"] == 134221568.0
    assert launch.values["dram_throughput"] == 65.77
    assert launch.values["duration"] == pytest.approx(9495.42e-9)


def test_unmeasured_metric_is_not_zero(read: Read) -> None:
    export, (launch,) = read(
        long_export(
            metric(ONE, SOL, "DRAM Throughput", "%", "n/a"),
            metric(ONE, SOL, "Compute (SM) Throughput", "%", "nan"),
            metric(ONE, MEMORY, "L2 Hit Rate", "%", "0"),
        )
    )
    assert launch.values == {"l2_hit_rate": 0.0}
    assert not export.unreadable


@pytest.mark.parametrize(("value", "known"), [("104.00", True), ("110.1", False), ("-0.1", False), ("0", True)])
def test_a_share_of_a_peak_that_cannot_be_is_named(read: Read, value: str, known: bool) -> None:
    export, (launch,) = read(
        long_export(
            metric(ONE, SOL, "DRAM Throughput", "%", value), metric(ONE, MEMORY, "L1/TEX Hit Rate", "%", "120.5")
        )
    )
    assert ("dram_throughput" in launch.values) is known
    # A rate of hits is no share of a peak.
    assert launch.values["l1_hit_rate"] == 120.5
    assert export.impossible == ({} if known else {f"DRAM Throughput: {value}": 2})


def test_a_metric_in_a_unit_that_is_not_known_is_named(read: Read) -> None:
    export, (launch,) = read(
        long_export(metric(ONE, SOL, "Duration", "fortnight", "2"), metric(ONE, SOL, "X", "?", "1"))
    )
    assert launch.values == {}
    assert export.unknown_units == {"Duration in 'fortnight'": 2}


def test_a_number_in_the_other_format_is_named(read: Read) -> None:
    export, (launch,) = read(
        long_export(metric(ONE, SOL, "DRAM Throughput", "%", "19.66"), metric(ONE, MEMORY, "L2 Hit Rate", "%", "65,77"))
    )
    assert launch.values == {"dram_throughput": 19.66}
    assert export.unreadable == {"L2 Hit Rate: '65,77'": 3}


@pytest.mark.parametrize("last", ["Process ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"])
def test_columns_may_be_in_any_order(read: Read, last: str) -> None:
    header, cells = csv.reader(long_export(DURATION).splitlines())
    text = io.StringIO()
    table = csv.DictWriter(text, sorted(header, key=lambda name: name == last), quoting=csv.QUOTE_ALL)
    table.writeheader()
    table.writerow(dict(zip(header, cells, strict=True)))
    # What was printed between rows, and looks like one that has not all columns.
    csv.writer(text, quoting=csv.QUOTE_ALL).writerow(["x"] * (len(header) - 1))
    export, (launch,) = read(text.getvalue())
    assert launch.values == {"duration": pytest.approx(6.75e-6)}
    assert export.foreign_lines == 1


def test_foreign_output_is_skipped(read: Read) -> None:
    text = long_export(DURATION, "loss: 0.5", metric(ONE, SOL, "DRAM Throughput", "%", "19.66"), "17 steps", end="\r\n")
    export, (launch,) = read(
        '==PROF== Connected to process 58960\r\nsaid "hello\r\n' + text + "==PROF== Disconnected\r\n"
    )
    assert set(launch.values) == {"duration", "dram_throughput"}
    assert export.foreign_lines == 5


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings(read: Read, encoding: str) -> None:
    _, (launch,) = read(long_export(DURATION).encode(encoding))
    assert launch.values["duration"] == pytest.approx(6.75e-6)


def test_rules_of_ncus_own_come_with_their_launch(read: Read) -> None:
    said = row(*ONE.cells, "SpeedOfLight", "", "", "", "SOLBottleneck", "OPT", "low, very low", "global", "45.64")
    other = Launch(number=1, kernel="other")
    _, (first, second) = read(
        long_export(DURATION + ",", said, metric(other, SOL, "Duration", "us", "1.00"), rules=True)
    )
    (rule,) = first.rules
    assert (rule.name, rule.kind, rule.text, rule.speedup_pct) == ("SOLBottleneck", "OPT", "low, very low", 45.64)
    assert (first.number, second.number, second.rules) == ("0", "1", ())


def test_a_row_is_a_launch(read: Read) -> None:
    export, launches = read(
        wide_export(
            ("gpu__time_duration.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "some__counter.sum"),
            ("ns", "%", ""),
            (Launch(number=0), ("9,589,248", "88.10", "1")),
            (Launch(number=1, kernel="other"), ("1,024", "n/a", "2")),
        )
    )
    assert (export.form, export.launches) == (Form.WIDE, 2)
    assert launches[0].values == {"duration": pytest.approx(9.589248e-3), "dram_throughput": 88.10}
    assert launches[1].values == {"duration": pytest.approx(1.024e-6)}


def test_device_name_comes_from_the_file(read: Read) -> None:
    name = "device__attribute_display_name"
    _, (long,) = read(
        long_export(metric(Launch(), RAW, name, "", "NVIDIA A40"), metric(Launch(), RAW, "x.sum", "", "1"))
    )
    _, (wide,) = read(wide_export(["x.sum", name], ["", ""], (Launch(), ["1", "NVIDIA A40"])))
    _, (unnamed,) = read(wide_export(["x.sum"], [""], (Launch(), ["1"])))
    assert (long.device_name, wide.device_name, unnamed.device_name) == ("NVIDIA A40", "NVIDIA A40", "")


def test_a_wide_table_without_quotation_marks(read: Read) -> None:
    header = "ID,Kernel Name,Device,CC,gpu__time_duration.sum"
    _, (launch,) = read(f"{header}\n,,,,us\n3,copy,0,9.0,12.5\n")
    assert (launch.number, launch.values) == ("3", {"duration": pytest.approx(12.5e-6)})


def test_stalls_are_metrics_of_their_own(read: Read) -> None:
    per_issue = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
    other = "smsp__average_warps_issue_stalled_barrier_not_issued_per_issue_active.ratio"
    _, (launch,) = read(long_export(metric(ONE, RAW, per_issue, "inst", "12.5"), metric(ONE, RAW, other, "inst", "3")))
    assert launch.values == {"stall_cycles.long_scoreboard": 12.5}


def test_values_are_facts_with_their_place(read: Read) -> None:
    _, (launch,) = read("==PROF== preamble\n" + long_export(DURATION))
    (fact,) = launch.list_measurements()
    assert (fact.metric, fact.unit, fact.provenance.line, fact.provenance.name) == ("duration", "s", 3, "Duration")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        (" \n \n", "is empty"),
        ("a,b,c\n1,2,3\n", "no row with the columns ID and Kernel Name in 2 lines"),
        (long_export(), "line 1: a table without a launch"),
        (long_export(DURATION)[:-30], "line 2"),
        (long_export(DURATION) + '"0","58960","app"', "line 3: a row of 3 columns, expected 15"),
        (long_export(DURATION, long_export(DURATION)), "line 3: a second table begins"),
        (long_export(DURATION) + '"0","5' + "x\n" * 2000, "line 3: a quotation mark that is not closed"),
        (
            long_export(DURATION) + '"0","5' + f"{'x' * 100_000}\n" * 20 + '"',
            "line 3: a quotation mark that is not closed",
        ),
        ('"ID","Kernel Name","Metric Name"\n', "without the column Metric Unit, Metric Value"),
        (b"PK\x03\x04....", "is a zip archive"),
        (b"\x7fELF\0\0\0", "is a compiled program"),
        (b"text\0with\0nul", "is a binary file"),
        (long_export(*[DURATION] * 50).encode() + b'"0"\0', "line 52: a NUL character"),
        ("x" * (1 << 21), "line 1: longer than 1,048,576 characters"),
        (long_export(DURATION) + '"' + "x" * 200_000 + '"\n', "line 3: no row of a table"),
    ],
)
def test_non_export_is_refused(read: Read, content: str | bytes, said: str) -> None:
    with pytest.raises(EvidenceError) as refused:
        read(content)
    assert said in str(refused.value)
    assert "report.csv" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_missing_files_are_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "nothing.csv", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(EvidenceError, match=said):
            read_ncu_csv(path, lambda _: None)


def test_launches_are_given_as_they_are_read(read: Read, tmp_path: Path) -> None:
    rows = [metric(Launch(number=number), SOL, "Duration", "us", f"{number}.50") for number in range(1000)]
    export, launches = read(long_export(*rows))
    assert export.launches == 1000
    assert [launch.values["duration"] for launch in launches] == pytest.approx([(n + 0.5) * 1e-6 for n in range(1000)])


VALID = long_export(DURATION + ",", metric(ONE, SOL, "DRAM Throughput", "%", "19.66") + ",", rules=True)
PIECES = st.sampled_from(
    ['"', ",", "\n", "\r", "\0", "ID", '"ID"', "1,5", "n/a", "é", "\ufeff", "=cmd", "\x1b[31m", '""']
)


@pytest.mark.integration
@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, len(VALID)), PIECES | st.text(max_size=5), st.integers(0, 40)), max_size=4))
def test_damage_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, str, int]]
) -> None:
    text = VALID
    for at, piece, cut in damage:
        text = text[:at] + piece + text[at + cut :]
    path = tmp_path_factory.getbasetemp() / "damaged.csv"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    launches: list[KernelLaunch] = []
    try:
        export = read_ncu_csv(path, launches.append)
    except EvidenceError as error:
        assert str(error)
    else:
        assert export.launches == len(launches) > 0


@settings(suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.text(st.sampled_from('k",\n x\x0b\u2028'), max_size=8), min_size=1, max_size=5),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_cells_are_those_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, kernels: list[str], quoting: Literal[0, 1], end: str
) -> None:
    header, cells = csv.reader(long_export(DURATION).splitlines())
    path = tmp_path_factory.getbasetemp() / "written.csv"
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, header, quoting=quoting, lineterminator=end)
        table.writeheader()
        for number, kernel in enumerate(kernels):
            table.writerow({**dict(zip(header, cells, strict=True)), "ID": number, "Kernel Name": kernel})
    launches: list[KernelLaunch] = []
    read_ncu_csv(path, launches.append)
    assert [launch.kernel for launch in launches] == [kernel.strip() for kernel in kernels]


def test_any_bytes_are_refused_or_read(tmp_path: Path) -> None:
    draw = random.Random(0)
    path = tmp_path / "bytes.csv"
    for _ in range(500):
        path.write_bytes(draw.randbytes(draw.randrange(300)))
        with pytest.raises(EvidenceError):
            read_ncu_csv(path, lambda _: None)
