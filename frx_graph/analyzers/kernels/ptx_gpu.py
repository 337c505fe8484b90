"""The GPU that PTX is assembled for: the one that somebody names, if it can run it, else that of the file's target.

PTX for `sm_80` can be assembled for every later architecture; for `sm_90a`, which uses what only that one has, for no
other; for `sm_100f` for those of its family, which have the same first figures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from frx_graph.rules.gpu_profile import GpuProfile, architecture_of, features_of

BY_OPTION = "--gpu-model"
BY_TARGET = "the file's target"
_ARCHITECTURE = re.compile(r"sm_(\d{1,4})(?!\d)([af]?)")


@dataclass(frozen=True, slots=True)
class PtxGpu:
    """`target` is what the assembler is given. `features` can be used there, `missing` only with a target of that
    architecture alone (`sm_90a`)."""

    profile: GpuProfile
    known_by: str
    target: str
    features: tuple[str, ...]
    missing: tuple[str, ...]


def gpu_of_target(target: str, given: GpuProfile | None) -> PtxGpu | None:
    """None where the target's architecture is not listed, or `given` cannot run what is for that target."""
    profile = architecture_of(target) if given is None else given
    wanted = _ARCHITECTURE.search(target)
    if profile is None or wanted is None:
        return None
    name = profile.architecture.architecture
    if not _runs(name, int(wanted[1]), wanted[2]):
        return None
    assembled_for = name + wanted[2]
    features = features_of(profile.architecture, assembled_for)
    missing = tuple(one for one in profile.architecture.architecture_specific_features if one not in features)
    return PtxGpu(profile, BY_TARGET if given is None else BY_OPTION, assembled_for, features, missing)


def _runs(architecture: str, least: int, suffix: str) -> bool:
    found = _ARCHITECTURE.fullmatch(architecture)
    if found is None:
        return False
    number = int(found[1])
    if suffix == "a":
        return number == least
    return number >= least and (suffix == "" or number // 10 == least // 10)
