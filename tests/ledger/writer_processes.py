"""Processes that open a new ledger at the same moment and write to it, each its own events, one at a time.

    python writer_processes.py PROCESSES EVENTS LEDGER...

One ledger after the other. Prints the hash of every event that was acknowledged. The processes are forked, so that
torch is imported only once.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime

from frx_graph.ledger.database.engine import Access, make_ledger_engine
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.location import parse_location


def write(ledger_name: str, number: int, events: int, start: int) -> None:
    os.read(start, 1)  # the end of the pipe, when all are there
    ledger = open_ledger(parse_location(ledger_name))
    for count in range(events):
        (event,) = ledger.append(
            [
                Decision(
                    kind=Kind.PROPOSED,
                    signature="a" * 16,
                    environment=f"{count % 2:016x}",
                    plan=f"{number:016x}",
                    reason=f"event {count}",
                    decided_by=f"writer {number}",
                    host="here",
                    process_id=os.getpid(),
                    recorded_at=datetime.now(UTC),
                )
            ]
        )
        os.write(sys.stdout.fileno(), f"{event.hash}\n".encode())


def main(ledger_name: str, processes: int, events: int) -> int:
    make_ledger_engine(parse_location(ledger_name), Access.READ)  # so that the driver, too, is imported only once
    waiting, start = os.pipe()
    children = []
    for number in range(processes):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(start)
                write(ledger_name, number, events, waiting)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(start)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(max(main(name, int(sys.argv[1]), int(sys.argv[2])) for name in sys.argv[3:]))
