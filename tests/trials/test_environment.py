"""On what a trial was made: the same setup has the same fingerprint in every process, another has another."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch._inductor import config

from frx_graph.measure.machine.device_state import DeviceState
from frx_graph.measure.machine.environment_record import MeasurementEnvironment
from frx_graph.measure.machine.processor_state import CpuThrottling, ProcessorState
from frx_graph.trials import environment
from frx_graph.trials.environment import identify_cpp_compiler, read_trial_environment, read_trial_setup
from frx_graph.trials.environment_record import TrialEnvironment, TrialSetup

CPU = torch.device("cpu")
SETUP = read_trial_setup(CPU, {})
ADAPTER = TypeAdapter(TrialEnvironment)

texts = st.text(max_size=8)
variables = st.dictionaries(texts, texts, max_size=3).map(lambda found: tuple(sorted(found.items())))
operators = st.builds(MeasurementEnvironment)
setups = st.builds(TrialSetup, operators=operators, variables=variables)


def test_every_kind_of_environment_round_trips_as_json() -> None:
    here = read_trial_environment(CPU)
    device = DeviceState(1755, 1980, None, 41, 123.45, None, 97, ("SwPowerCap",))
    other = dataclasses.replace(here, affinity=None, device=device)
    for found in (here, other):
        assert ADAPTER.validate_json(ADAPTER.dump_json(found)) == found
        assert ADAPTER.validate_python(json.loads(json.dumps(ADAPTER.dump_python(found, mode="json")))) == found
    assert len(here.setup.fingerprint) == 16
    int(here.setup.fingerprint, 16)


def test_of_this_process() -> None:
    found = read_trial_environment(CPU)
    assert found.setup == read_trial_setup(CPU)
    assert found.setup.operators.torch == torch.__version__
    assert found.setup.operators.threads == torch.get_num_threads()
    assert found.setup.interop_threads == torch.get_num_interop_threads()
    assert found.setup.processors == len(found.affinity or ())
    assert found.device is None
    assert (found.setup.driver, found.setup.cuda, found.setup.cudnn, found.setup.capability) == (None,) * 4


PRINT = """
import torch
from frx_graph.trials.environment import read_trial_setup
setup = read_trial_setup(torch.device("cpu"))
torch.compile(lambda x: x.sin() * 2, backend="aot_eager")(torch.ones(3))
from torch._inductor.runtime.cache_dir_utils import cache_dir
cache_dir()  # Inductor does, for any graph, and names the folder in the environment
assert read_trial_setup(torch.device("cpu")) == setup
print(setup.fingerprint)
"""


def fingerprint_of_a_process(**more: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}
    ran = subprocess.run(
        [sys.executable, "-c", PRINT], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    return ran.stdout.strip()


@pytest.mark.integration
def test_fresh_processes_agree_unless_a_setting_differs() -> None:
    base = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "1"}
    first = fingerprint_of_a_process(**base)
    assert first == fingerprint_of_a_process(**base | {"PYTHONHASHSEED": "2", "FRX_CACHE_DIR": "/nowhere"})
    assert first != fingerprint_of_a_process(**base, ATEN_CPU_CAPABILITY="default")


PARTS = [field.name for field in dataclasses.fields(TrialSetup)]
OPERATOR_PARTS = [field.name for field in dataclasses.fields(MeasurementEnvironment)]


def other_than(value: Any) -> Any:
    """Another value of its kind."""
    if value is None:
        return ""
    if isinstance(value, int):
        return value + 1
    if isinstance(value, tuple):
        return (*value, ("ONEDNN_MAX_CPU_ISA", "AVX2"))
    return f"{value}x"


@given(setups, st.sampled_from([name for name in PARTS if name != "operators"]))
def test_each_part_changes_the_fingerprint(setup: TrialSetup, part: str) -> None:
    assert dataclasses.replace(setup).fingerprint == setup.fingerprint
    changed = dataclasses.replace(setup, **{part: other_than(getattr(setup, part))})
    assert changed.fingerprint != setup.fingerprint


@given(setups, st.sampled_from(OPERATOR_PARTS))
def test_each_part_of_the_operators_changes_it(setup: TrialSetup, part: str) -> None:
    operators = dataclasses.replace(setup.operators, **{part: other_than(getattr(setup.operators, part))})
    assert dataclasses.replace(setup, operators=operators).fingerprint != setup.fingerprint


@given(setups, setups)
def test_different_setups_differ(first: TrialSetup, second: TrialSetup) -> None:
    assert (first == second) == (first.fingerprint == second.fingerprint)


def test_transient_state_is_not_part_of_the_fingerprint() -> None:
    here = read_trial_environment(CPU)
    busy = ProcessorState(800.0, 900.0, 99.0, 1, CpuThrottling(1, 2, 3.0))
    device = DeviceState(1, 2, 3, 4, 5.0, 6.0, 7, ("HwSlowdown",))
    assert dataclasses.replace(here, processor=busy, device=device, host="x", affinity=(7,)).setup.fingerprint == (
        here.setup.fingerprint
    )


@pytest.mark.parametrize(
    "name",
    [
        "ONEDNN_MAX_CPU_ISA",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
        "OMP_NUM_THREADS",
        "KMP_AFFINITY",
        "CUBLAS_WORKSPACE_CONFIG",
        "NVIDIA_TF32_OVERRIDE",
        "MALLOC_CONF",
        "ATEN_CPU_CAPABILITY",
    ],
)
def test_variables_that_decide(name: str) -> None:
    found = read_trial_setup(CPU, {name: "1", "HOME": "/x"})
    assert found.variables == ((name, "1"),)
    assert len({SETUP.fingerprint, found.fingerprint, read_trial_setup(CPU, {name: "2"}).fingerprint}) == 3


@pytest.mark.parametrize(
    "name",
    ["HOME", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "ONEDNN_VERBOSE", "CUDA_VISIBLE_DEVICES", "XOMP_X"],
)
def test_variables_that_do_not(name: str) -> None:
    assert read_trial_setup(CPU, {name: "1"}) == SETUP


def test_order_of_variables_does_not_matter() -> None:
    one, two = ("OMP_A", "1"), ("OMP_B", "2")
    assert read_trial_setup(CPU, dict([one, two])) == read_trial_setup(CPU, dict([two, one]))


def test_a_setting_of_torch_changes_it() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert read_trial_setup(CPU, {}).fingerprint != SETUP.fingerprint
    finally:
        torch.use_deterministic_algorithms(False)
    assert read_trial_setup(CPU, {}).fingerprint == SETUP.fingerprint


def test_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    state = DeviceState(1755, 1980, 3201, 41, 123.45, 700.0, 97, ())

    class Known:
        def read_driver(self) -> str:
            return "570.1"

        def read_state(self) -> DeviceState:
            return state

    monkeypatch.setattr(environment, "find_nvidia_device", lambda device: Known() if device.type == "cuda" else None)
    found = read_trial_environment(torch.device("cuda"))
    assert found.device is state
    assert found.setup.driver == "570.1"
    assert read_trial_environment(CPU).device is None


def test_of_two_devices_the_one_that_is_tried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, device.index))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91000)
    monkeypatch.setattr(environment, "find_nvidia_device", lambda device: None)
    monkeypatch.setattr(environment, "get_measurement_environment", lambda kind: SETUP.operators)
    monkeypatch.setattr(environment, "get_device_name", lambda device: f"the {device}")
    found = read_trial_setup(torch.device("cuda", 1), {})
    assert (found.operators.device_name, found.processor) == ("the cuda:1", "the cpu")
    assert (found.capability, found.cudnn, found.driver) == ("9.1", 91000, None)
    assert found.fingerprint != read_trial_setup(torch.device("cuda", 0), {}).fingerprint


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_real_device() -> None:
    found = read_trial_environment(torch.device("cuda"))
    assert ADAPTER.validate_json(ADAPTER.dump_json(found)) == found
    assert found.setup.operators.device_name == torch.cuda.get_device_name()
    assert None not in (found.setup.driver, found.setup.cuda, found.setup.cudnn, found.setup.capability, found.device)
    assert found.fingerprint == read_trial_environment(torch.device("cuda")).fingerprint


def compiler(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    os.utime(path, (1e9, 1e9))
    return path


def test_compiler_is_identified_by_its_resolved_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with config.patch({"cpp.cxx": (None, "g++")}):
        assert identify_cpp_compiler() is None
        real = compiler(tmp_path / "g++-12")
        (tmp_path / "g++").symlink_to(real)
        assert identify_cpp_compiler() == "g++-12, 10 bytes, 1000000000"
        here = read_trial_setup(torch.device("cpu")).fingerprint
        compiler(real, "#!/bin/sh\n# another version\n")
        assert identify_cpp_compiler() == "g++-12, 28 bytes, 1000000000"
        assert read_trial_setup(torch.device("cpu")).fingerprint != here
    compiler(tmp_path / "clang++")
    with config.patch({"cpp.cxx": "clang++"}):
        assert identify_cpp_compiler() == "clang++, 10 bytes, 1000000000"
