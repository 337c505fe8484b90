"""PTX to try the reader on: CUDA sources compiled for several targets, as often as there are ways to compile them.

    python benchmarks/ptx_corpus.py OUT SOURCES... [--rotate] [--include FOLDER]

SOURCES are folders of `.cu` files. A module's name tells what it was made from and how. Sources of a large collection
may be compiled in one way each, all ways in turn (`--rotate`). What nvcc refuses is listed with its reason: a header
that is not installed, a feature that the target does not have.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Way:
    """How a source is compiled."""

    target: str
    flags: tuple[str, ...]

    @property
    def label(self) -> str:
        """For a file's name."""
        return self.target + "".join(flag.replace("=", "") for flag in self.flags)


WAYS = (
    Way("sm_80", ("-O3",)),
    Way("sm_90a", ("-O3", "-lineinfo")),
    Way("sm_75", ("-O3",)),
    Way("sm_80", ("-G",)),
    Way("sm_120a", ("-O3",)),
    Way("sm_90a", ("-O3", "-rdc=true")),
    Way("sm_100a", ("-O3",)),
    Way("sm_100a", ("-G",)),
)


@dataclass(frozen=True)
class Refused:
    """A source that nvcc has not compiled."""

    source: str
    way: str
    reason: str


def sources(folders: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Each CUDA source with the folder that it was found in."""
    for folder in folders:
        for path in sorted(folder.rglob("*.cu")):
            yield folder, path


def compiled(
    folders: Sequence[Path], out: Path, *, rotate: bool, include: Sequence[Path]
) -> tuple[list[Path], list[Refused]]:
    """The modules, in the folder `out`; those that are there already are not made again."""
    out.mkdir(parents=True, exist_ok=True)
    modules, refused = [], []
    for number, (folder, source) in enumerate(sources(folders)):
        ways = [WAYS[number % len(WAYS)]] if rotate else WAYS
        for way in ways:
            stem = "_".join(source.relative_to(folder.parent).with_suffix("").parts)
            module = out / f"{stem}.{way.label}.ptx"
            if not module.exists() and (reason := _compile(source, module, way, include)):
                refused.append(Refused(str(source.relative_to(folder.parent)), way.label, reason))
                continue
            modules.append(module)
    return modules, refused


def _compile(source: Path, module: Path, way: Way, include: Sequence[Path]) -> str:
    """Why it could not be, empty if it could."""
    folders = [f"-I{folder}" for folder in (*include, source.parent)]
    command = ["nvcc", "-ptx", f"-arch={way.target}", "-std=c++17", *way.flags, "-w", *folders]
    try:
        done = subprocess.run(
            [*command, "-o", str(module), str(source)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        module.unlink(missing_ok=True)
        return f"longer than {_LIMIT_SECONDS:.0f} s"
    if done.returncode:
        module.unlink(missing_ok=True)
        return next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200]).strip()
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--rotate", action="store_true", help="one way a source, all in turn")
    parser.add_argument("--include", type=Path, action="append", default=[], metavar="FOLDER")
    given = parser.parse_args(arguments)
    modules, refused = compiled(given.sources, given.out, rotate=given.rotate, include=given.include)
    for one in refused:
        print(f"not compiled: {one.source} {one.way}: {one.reason}")
    print(f"{len(modules)} modules, {len(refused)} not compiled")
    return 0 if modules else 1


if __name__ == "__main__":
    sys.exit(main())
