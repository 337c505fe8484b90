"""Jobs without a model, which nodes import by this name: the folder is on their path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frx_graph.errors import TrialError
from frx_graph.support.supervisor.process import extend_pythonpath
from frx_graph.trials.arm_process import ArmProcess

if TYPE_CHECKING:
    from frx_graph.trials.trial_run import TrialRun

Told = Callable[[str], None]


@dataclass(frozen=True)
class Doubled:
    """Gives a number back, and where it was."""

    number: int

    @property
    def label(self) -> str:
        return f"job {self.number}"

    def __call__(self, progress: Told) -> tuple[int, int, str, str | None]:
        return 2 * self.number, os.getpid(), str(Path.cwd()), os.environ.get("OMP_NUM_THREADS")


@dataclass(frozen=True)
class Failing:
    """Comes to nothing, and says why."""

    label: str = "failing"

    def __call__(self, progress: Told) -> None:
        raise TrialError("the program does not run", "run it by itself first")


@dataclass(frozen=True)
class Dying:
    """Its process is killed, until there are `lives` notes of that in `folder`."""

    folder: str
    lives: int
    label: str = "dying"

    def __call__(self, progress: Told) -> int:
        notes = Path(self.folder)
        if len(list(notes.iterdir())) < self.lives:
            (notes / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return len(list(notes.iterdir()))


@dataclass(frozen=True)
class Surroundings:
    """Gives back the processors of a process that it starts, the GPUs it may see, and where it is."""

    label: str = "surroundings"

    def __call__(self, progress: Told) -> tuple[frozenset[int], str | None, str]:
        told = "import os; print(*os.sched_getaffinity(0))"
        processors = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True).stdout
        return frozenset(map(int, processors.split())), os.environ.get("CUDA_VISIBLE_DEVICES"), str(Path.cwd())


@dataclass(frozen=True)
class Torn:
    """Ends while its answer is written, of which there is this piece."""

    piece: bytes
    label: str = "torn"

    def __call__(self, progress: Told) -> None:
        # Behind standard output and error, the only pipe of an attempt's process is the one for its answer.
        (answers,) = (
            int(place.name) for place in Path("/proc/self/fd").iterdir() if place.is_fifo() and int(place.name) > 2
        )
        os.write(answers, self.piece)
        os._exit(0)


@dataclass(frozen=True)
class Staying:
    """Says what it found, but its process does not end; it notes that in `folder`."""

    folder: str
    label: str = "staying"

    def __call__(self, progress: Told) -> str:
        (Path(self.folder) / "pid").write_text(str(os.getpid()))
        threading.Thread(target=time.sleep, args=(600.0,)).start()
        return "said"


@dataclass(frozen=True)
class PlayedTrial:
    """A whole trial, with arms that are played: what they take depends on the seed of nothing else than the trial."""

    seed: int

    @property
    def label(self) -> str:
        return f"trial with seed {self.seed}"

    def __call__(self, progress: Told) -> TrialRun:
        # Beside the tests of the executor, whose arms these are.
        sys.path.insert(0, str(Path(__file__).parents[1] / "trials"))
        from test_executor import POLICY, PROGRAMS, World

        from frx_graph.trials.executor import run_trial

        # Of the first two blocks nothing is kept.
        world = World({False: 0.010, True: 0.008}, void=frozenset({2 + self.seed * 4}))
        return run_trial(
            PROGRAMS,
            POLICY.model_copy(update={"seed": self.seed}),
            world.start,
            progress=progress,
            clock=lambda: world.time,
            pause=world.pauses.append,
        )


@dataclass(frozen=True)
class WithArm:
    """Notes its arm in `folder`, which runs until somebody ends it, or for as long as there is a file `gate`."""

    folder: str
    number: int
    gate: str

    @property
    def label(self) -> str:
        return f"with arm {self.number}"

    def __call__(self, progress: Told) -> int:
        sleeping = "from frx_graph.trials.arm_connection import connect_to_parent; next(iter(connect_to_parent()))"
        with (
            tempfile.TemporaryDirectory(prefix="frx-trial-", dir=self.folder),
            ArmProcess([sys.executable, "-c", sleeping], environment=extend_pythonpath()) as arm,
        ):
            note = Path(self.folder) / f"started-{self.number}-{os.getpid()}"
            note.with_suffix(".part").write_text(f"{os.getpid()} {arm.pid}")
            note.with_suffix(".part").rename(note)
            while Path(self.gate).exists():
                time.sleep(0.05)
        return self.number


def processes_of(folder: Path) -> list[int]:
    """Those that jobs with arms have noted."""
    return [int(pid) for note in folder.glob("started-*") if note.suffix != ".part" for pid in note.read_text().split()]
