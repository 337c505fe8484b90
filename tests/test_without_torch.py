"""What reads files works in an environment without torch, and does not import torch where it is installed."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data"
TRACE = DATA / "traces" / "hta_alexnet_one_forward.json.gz"
CUDA = next(iter(sorted((DATA / "cuda").rglob("*.cu"))))
PTX = next(iter(sorted((DATA / "ptx").rglob("*.ptx"))))
PROGRAM = "import sys; from frx_graph.cli.main import run; code = run(sys.argv[1:]); "
NOT_IMPORTED = "sys.exit('torch was imported' if 'torch' in sys.modules else code)"
"""Exit code of the command, or 1 with a message."""
OF_TORCH = ("torch", "torchgen", "functorch", "torchvision", "torchaudio")
EXPORT = (
    '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","copy","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","92.5"\n'
    '"0","copy","gpu__time_duration.sum","nsecond","12000"\n'
)

IMPORT_ROOMS = """
import importlib, pkgutil, sys

# Looks for the folder of torch, and does not import it.
import frx_graph.capture.call_site

assert "torch" not in sys.modules
sys.modules["torch"] = None
rooms = "analyze analyzers evidence fleet ledger reports rules runs.collect runs.tune service"
names = []
for room in rooms.split():
    package = importlib.import_module(f"frx_graph.{room}")
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    names += [module.name for module in found]
# Migrations are run by Alembic alone.
names = [name for name in names if not name.startswith("frx_graph.ledger.migrations")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def run_python(program: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.integration
def test_every_module_of_these_rooms_is_imported_without_torch() -> None:
    assert int(run_python(IMPORT_ROOMS)) > 300


@pytest.fixture(scope="session")
def python_without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has everything but torch."""
    folder = tmp_path_factory.mktemp("without_torch")
    packages = folder / "packages"
    packages.mkdir()
    for source in map(Path, site.getsitepackages()):
        for entry in source.iterdir():
            name = entry.name.partition("-")[0].partition(".")[0]
            if name not in OF_TORCH and entry.suffix != ".pth":
                (packages / entry.name).symlink_to(entry)
    venv.create(folder / "environment", symlinks=True)
    (own,) = (folder / "environment" / "lib").glob("python*/site-packages")
    (own / "all_but_torch.pth").write_text(f"{packages}\n{ROOT}\n")
    return folder / "environment" / "bin" / "python"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one of each kind of file."""
    for source, name in ((TRACE, "trace.json.gz"), (CUDA, "kernel.cu"), (PTX, "kernel.ptx")):
        shutil.copy(source, tmp_path / name)
    (tmp_path / "report.csv").write_text(EXPORT)
    (tmp_path / "count.py").write_text("for number in range(3):\n    print(number)\n")
    (tmp_path / "train.py").write_text("for batch in loader:\n    model(batch).backward()\n    optimizer.step()\n")
    return tmp_path


COMMANDS: dict[str, tuple[str, ...]] = {
    "help": ("--help",),
    "analyze a trace": ("analyze", "trace.json.gz"),
    "analyze a trace's layouts": ("analyze", "--trace", "trace.json.gz"),
    "analyze an export": ("analyze", "report.csv"),
    "analyze PTX": ("analyze", "kernel.ptx"),
    "analyze CUDA": ("analyze", "kernel.cu"),
    "profile an export": ("profile", "--ncu", "report.csv"),
    "explain": ("explain", "report.csv", "--source", "kernel.cu"),
    "reconcile": ("reconcile", "kernel.cu", "report.csv"),
    "compare": ("compare", "kernel.cu", "kernel.cu"),
    "compare traces": ("compare", "trace.json.gz", "trace.json.gz"),
    "ncu-command": ("ncu-command", "full"),
    "rules": ("rules",),
    "one rule": ("rules", "FRX001"),
    "ledger": ("ledger", "list"),
    "collect": ("collect", "--out", "runs", "--", sys.executable, "count.py"),
    "init": ("init",),
    "init --patch": ("init", "--patch", "train.py", "--yes"),
    "doctor": ("doctor",),
    "completion": ("completion", "bash"),
}


def check(command: tuple[str, ...], folder: Path, python: Path, program: str) -> str:
    own = {"HOME": str(folder), "FRX_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [str(python), "-c", program, *command],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "internal error" not in done.stderr
    assert "torch was imported" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_without_torch(command: tuple[str, ...], folder: Path, python_without_torch: Path) -> None:
    assert check(command, folder, python_without_torch, PROGRAM + "sys.exit(code)")


@pytest.mark.parametrize(
    "command",
    [command for name, command in COMMANDS.items() if name not in ("init", "doctor")],
    ids=[name for name in COMMANDS if name not in ("init", "doctor")],
)
@pytest.mark.integration
def test_commands_leave_torch_alone(command: tuple[str, ...], folder: Path) -> None:
    check(command, folder, Path(sys.executable), PROGRAM + NOT_IMPORTED)


@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    [("fleet", "runs"), ("smoke-test",), ("tune", "--help"), ("serve", "--help"), ("bench", "--help")],
    ids=str,
)
def test_longer_commands_without_torch(command: tuple[str, ...], folder: Path, python_without_torch: Path) -> None:
    check(COMMANDS["collect"], folder, python_without_torch, PROGRAM + "sys.exit(code)")
    assert check(command, folder, python_without_torch, PROGRAM + "sys.exit(code)")


@pytest.mark.parametrize("command", ["advise", "trial", "probe"])
def test_commands_that_need_torch_say_so(command: str, python_without_torch: Path, tmp_path: Path) -> None:
    target = () if command == "probe" else ("model.py:build",)
    done = subprocess.run(
        [str(python_without_torch), "-c", PROGRAM + "sys.exit(code)", command, *target],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "needs PyTorch" in done.stderr
    assert "pip install 'frx-graph[torch]'" in done.stderr
