"""Read runs in a process: `python -m frx_graph.fleet.reader_process MEMORY_BYTES PARENT`.

Each task is a line on standard input. Each answer is a line on standard output: a word for the kind, a tab, and JSON;
`done` is the last answer to a task. A run that needs more than the given memory is reported as unreadable. If even that
fails, or takes too long, another process replaces this one, which holds no state.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import IO, Any

from frx_graph.fleet.messages import Failure, Fetch, ReadingTask
from frx_graph.fleet.reading import Begun, Outcome, read_runs
from frx_graph.fleet.rows import RunRows
from frx_graph.support.supervisor.supervised import claim_stdout, end_with_parent, limit_resources


def format_lines(outcome: Outcome) -> Iterator[tuple[str, object]]:
    """Yield the lines for an outcome: a word, and the value after it as JSON. A run's rows come before the run."""
    match outcome:
        case Begun():
            yield "begun", outcome.name
        case Failure():
            yield "unreadable", [outcome.name, outcome.reason]
        case Fetch():
            yield "outdated", outcome.name
        case RunRows():
            tables: dict[str, tuple[Any, ...]] = {
                "labels": outcome.labels,
                "findings": outcome.findings,
                "advice": outcome.advice,
                "runs": (outcome.run,),
            }
            for table, rows in tables.items():
                # `asdict` copies the contents, which takes several times as long.
                yield from ((table, {one.name: getattr(row, one.name) for one in fields(row)}) for row in rows)


def serve(tasks: IO[bytes], answers: IO[bytes]) -> None:
    """Answer tasks until none are left."""
    for line in tasks:
        for outcome in read_runs(ReadingTask(**json.loads(line))):
            for word, value in format_lines(outcome):
                answers.write(f"{word}\t{json.dumps(value, allow_nan=False)}\n".encode())
            # Tells the waiting process which run takes so long.
            answers.flush()
        answers.write(b"done\tnull\n")
        answers.flush()


def main() -> None:
    """Answer on standard output; other output of the process goes to standard error."""
    end_with_parent(int(sys.argv[2]))
    limit_resources({resource.RLIMIT_DATA: int(sys.argv[1])})
    # A summary is about ten thousand objects without cycles: searching for cycles would take half of the time.
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    with claim_stdout() as answers:
        serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
