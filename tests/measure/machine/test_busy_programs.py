"""The programs that use the processors are named, and those of this process are not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from frx_graph.measure.machine import busy_programs as module
from frx_graph.measure.machine.busy_programs import BusyProgram, MachineLoad, describe_load, watch_machine_load
from frx_graph.measure.machine.disturbance import OthersLoad

LOAD = MachineLoad(
    seconds=1.0,
    processors=4,
    share=0.5,
    waited=False,
    load_average=3.25,
    stolen=0.125,
    programs=(BusyProgram(1, "cc1plus", 1.25), BusyProgram(2, "python", 0.5), BusyProgram(3, "sshd", 0.1)),
)


class Machine:
    """Processes and counters that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 0.0
        self.used: dict[int, tuple[str | None, float | None]] = {}
        self.steal, self.idle = 0.0, 0.0
        self.others: OthersLoad | None = OthersLoad(1.0, 4.0, 0.04)
        monkeypatch.setattr(module.psutil, "process_iter", self._list_processes)
        monkeypatch.setattr(module.psutil, "cpu_times", self._read_times)
        monkeypatch.setattr(
            module.psutil, "Process", lambda: SimpleNamespace(children=lambda **_: [SimpleNamespace(pid=7)])
        )
        monkeypatch.setattr(module.os, "getpid", lambda: 6)
        monkeypatch.setattr(module.os, "getloadavg", lambda: (2.5, 0.0, 0.0))
        monkeypatch.setattr(module, "list_usable_processors", lambda: frozenset(range(4)))
        monkeypatch.setattr(module, "watch_others_load", self._watch)

    def _list_processes(self, _: object) -> Iterator[Any]:
        for pid, (name, seconds) in self.used.items():
            times = None if seconds is None else SimpleNamespace(user=seconds, system=0.0)
            yield SimpleNamespace(pid=pid, info={"name": name, "cpu_times": times})

    def _read_times(self) -> Any:
        class Times(tuple[float, ...]):
            steal = self.steal

        return Times((self.idle, self.steal))

    @contextlib.contextmanager
    def _watch(self, **_: object) -> Iterator[Callable[[], OthersLoad | None]]:
        yield lambda: self.others

    def observe(self, change: Callable[[], None]) -> MachineLoad | None:
        with watch_machine_load(clock=lambda: self.time) as read:
            change()
            return read()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_busiest_programs_come_first_and_own_processes_are_left_out(machine: Machine) -> None:
    machine.used = {1: ("old", 100.0), 2: ("kworker/1", 5.0), 6: ("this", 1.0), 7: ("child", 1.0), 8: ("hidden", None)}

    def work() -> None:
        machine.time = 2.0
        # One has another name by now, and one is new.
        machine.used |= {1: ("old", 100.2), 2: ("kworker/2", 6.0), 3: (None, 3.0), 4: ("idle", 0.01)}
        machine.used |= {6: ("this", 3.0), 7: ("child", 3.0)}
        machine.steal, machine.idle = 1.0, 3.0

    found = machine.observe(work)
    assert found is not None
    assert [(one.pid, one.name) for one in found.programs] == [(3, "?"), (2, "kworker/2"), (1, "old")]
    assert [one.processors for one in found.programs] == pytest.approx([1.5, 0.5, 0.1])
    assert (found.seconds, found.processors, found.share, found.stolen) == (2.0, 4, 0.25, 0.25)
    assert found.load_average == 2.5
    assert found.is_busy


def test_few_programs_are_listed(machine: Machine) -> None:
    def work() -> None:
        machine.time = 1.0
        machine.used = {100 + number: ("cc1plus", 0.5) for number in range(50)}

    found = machine.observe(work)
    assert found is not None
    assert len(found.programs) == 5


@pytest.mark.parametrize("others", [None, OthersLoad(0.03, 0.1, 0.04), OthersLoad(0.1, 4.0, 0.04)])
def test_small_or_unknown_load_is_not_busy(machine: Machine, others: OthersLoad | None) -> None:
    machine.others = others

    def work() -> None:
        machine.time = 1.0

    found = machine.observe(work)
    assert found is not None
    assert not found.is_busy


def test_no_time_is_no_load(machine: Machine) -> None:
    assert machine.observe(lambda: None) is None


def test_description_is_one_line() -> None:
    assert describe_load(LOAD) == (
        "cc1plus (pid 1) uses 1.2, python (pid 2) uses 0.5 of 4 processors, load 3.2, "
        "12 % stolen by other virtual machines"
    )
    assert describe_load(replace(LOAD, stolen=0.01, load_average=None), named=1) == (
        "cc1plus (pid 1) uses 1.2 of 4 processors"
    )


def test_programs_that_cannot_be_seen_are_counted() -> None:
    unseen = replace(LOAD, programs=(), stolen=None, load_average=None)
    assert describe_load(unseen) == "programs that cannot be seen from here use 50 % of the processors"
    assert describe_load(replace(unseen, waited=True)) == (
        "programs that cannot be seen from here make it wait 50 % of the time"
    )
    assert describe_load(replace(unseen, share=None)) == ""


def test_this_machine_can_be_read() -> None:
    found = module.sample_machine_load(0.01)
    assert found is not None
    assert found.processors >= 1
    assert all(one.processors > 0 for one in found.programs)
