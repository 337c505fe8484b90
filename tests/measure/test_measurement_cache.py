import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec
from frx_graph.measure import measurement_cache
from frx_graph.measure.machine.measurement_environment import get_measurement_environment
from frx_graph.measure.measurement_cache import MeasuredOperators, make_signature_key, scale_to_known
from frx_graph.measure.operators.operator_measurement import LayoutTimes, Mechanism, OperatorMeasurement, SeenCopy

TENSOR = TensorSpec((4, 8), (1, 4), torch.float32, "cpu")
COPY = SeenCopy(Mechanism.ATEN, (4, 8), 4, "[1, 4]", "[8, 1]", "input", 0)
MEASUREMENT = OperatorMeasurement((COPY,), "a kernel")
TIMES = LayoutTimes(2.0, None)


def relu(size: int) -> OperatorSignature:
    return OperatorSignature("aten.relu.default", (TensorSpec((size,), (1,), torch.float32, "cpu"),))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[OperatorSignature]:
    """Stands in for the probe, and records what it was asked to measure."""
    asked: list[OperatorSignature] = []

    def stand_in(result: object) -> Callable[..., Mapping[OperatorSignature, object]]:
        def measure(
            signatures: Iterable[OperatorSignature],
            *,
            on_failure: Callable[[OperatorSignature, str], None],
            progress: object,
            resident: bool = False,
        ) -> Mapping[OperatorSignature, object]:
            found = {}
            for signature in signatures:
                asked.append(signature)
                if signature == relu(13):
                    on_failure(signature, "unlucky")
                else:
                    found[signature] = result
            return found

        return measure

    monkeypatch.setattr(measurement_cache, "measure_operators", stand_in(MEASUREMENT))
    monkeypatch.setattr(measurement_cache, "time_layouts", stand_in(TIMES))
    monkeypatch.setattr(measurement_cache, "watch_disturbance", lambda: nullcontext(lambda: False))
    return asked


def test_times_of_a_busy_machine_are_used_but_not_stored(
    tmp_path: Path, measured: list[OperatorSignature], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement_cache, "watch_disturbance", lambda: nullcontext(lambda: True))
    first = MeasuredOperators("cpu", directory=tmp_path)
    first.measure([relu(1)], [relu(3)])
    assert first.layout_times(relu(3)) == TIMES
    assert first.loaded
    MeasuredOperators("cpu", directory=tmp_path).measure([relu(1)], [relu(3)])
    assert measured == [relu(1), relu(3), relu(3)]


def test_times_that_are_not_steady_are_measured_again(
    tmp_path: Path, measured: list[OperatorSignature], monkeypatch: pytest.MonkeyPatch
) -> None:
    unsteady = replace(TIMES, steady=False)
    monkeypatch.setattr(measurement_cache, "time_layouts", lambda signatures, **_: dict.fromkeys(signatures, unsteady))
    MeasuredOperators("cpu", directory=tmp_path).measure([], [relu(3)])
    monkeypatch.setattr(measurement_cache, "time_layouts", lambda signatures, **_: dict.fromkeys(signatures, TIMES))
    again = MeasuredOperators("cpu", directory=tmp_path)
    again.measure([], [relu(3)])
    assert again.layout_times(relu(3)) == TIMES


def test_times_with_resident_operands_are_others(tmp_path: Path, measured: list[OperatorSignature]) -> None:
    for resident in (False, True, False, True):
        found = MeasuredOperators("cpu", directory=tmp_path)
        found.measure([], [relu(3)], resident=resident)
        assert found.layout_times(relu(3)) == TIMES
        assert not found.loaded
    assert measured == [relu(3), relu(3)]


def only_file(directory: Path) -> Path:
    (file,) = directory.glob("*.json")
    return file


def test_measured_operators_are_not_measured_again(tmp_path: Path, measured: list[OperatorSignature]) -> None:
    first = MeasuredOperators("cpu", directory=tmp_path)
    first.measure([relu(1), relu(2)], [relu(3)])
    assert measured == [relu(1), relu(2), relu(3)]
    first.measure([relu(2)], [relu(3)])
    second = MeasuredOperators("cpu", directory=tmp_path)
    second.measure([relu(2), relu(4)], [relu(3)])
    assert measured == [relu(1), relu(2), relu(3), relu(4)]
    assert second.measurement(relu(2)) == first.measurement(relu(2)) == MEASUREMENT
    assert second.layout_times(relu(3)) == TIMES
    assert second.measurement(relu(1)) is None
    assert second.layout_times(relu(2)) is None


def test_failures_are_kept_and_not_stored(tmp_path: Path, measured: list[OperatorSignature]) -> None:
    operators = MeasuredOperators("cpu", directory=tmp_path)
    operators.measure([relu(13)])
    assert operators.failures == {relu(13): "unlucky"}
    assert operators.measurement(relu(13)) is None
    assert not list(tmp_path.glob("*.json"))


def test_a_real_measurement_survives_the_file(tmp_path: Path) -> None:
    product = OperatorSignature("aten.bmm.default", (TensorSpec((1, 16, 16), (1024, 64, 2), torch.float32, "cpu"),) * 2)
    first, second = (MeasuredOperators("cpu", directory=tmp_path) for _ in range(2))
    first.measure([product])
    second.measure([product])
    assert second.measurement(product) == first.measurement(product)
    assert len(first.measurement(product).copies) == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "null",
        '{"version": 1, "measurements": {}, "layout_times": {}}',
        '{"version": 4, "layout_times": {"x": {"plain_seconds": NaN, "channels_last_seconds": 1}}}',
        '{"version": 4, "measurements": {"x": {"copies": [{"shape": [-1]}], "implementation": null}}}',
        "\x00\xff",
    ],
)
def test_a_file_that_makes_no_sense_is_rebuilt(tmp_path: Path, measured: list[OperatorSignature], content: str) -> None:
    MeasuredOperators("cpu", directory=tmp_path).measure([relu(1)])
    only_file(tmp_path).write_text(content)
    operators = MeasuredOperators("cpu", directory=tmp_path)
    operators.measure([relu(1)])
    assert operators.measurement(relu(1)) == MEASUREMENT
    assert list(json.loads(only_file(tmp_path).read_text())["measurements"]) == [make_signature_key(relu(1))]


def test_a_folder_that_cannot_be_written(tmp_path: Path, measured: list[OperatorSignature]) -> None:
    (tmp_path / "file").write_text("not a folder")
    for directory in (tmp_path / "file", Path("/proc/frx")):
        operators = MeasuredOperators("cpu", directory=directory)
        operators.measure([relu(1)])
        assert operators.measurement(relu(1)) == MEASUREMENT


@pytest.mark.integration
def test_writers_in_many_processes_lose_nothing(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from frx_graph.measure import measurement_cache as cache\n"
        "from frx_graph.measure.operators.operator_measurement import OperatorMeasurement\n"
        "from frx_graph.facts.operator_signature import OperatorSignature\n"
        "cache.measure_operators = lambda signatures, **_: {s: OperatorMeasurement(()) for s in signatures}\n"
        "for i in range(20):\n"
        "    operators = cache.MeasuredOperators('cpu', directory=Path(sys.argv[1]))\n"
        "    operators.measure([OperatorSignature(f'aten.op_{sys.argv[2]}_{i}', ())])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(number)], env=environment)
        for number in range(2)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    assert len(json.loads(only_file(tmp_path).read_text())["measurements"]) == 40


def test_the_oldest_entries_go(
    tmp_path: Path, measured: list[OperatorSignature], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement_cache, "_MOST_ENTRIES", 2)
    for size in (1, 2, 3):
        MeasuredOperators("cpu", directory=tmp_path).measure([relu(size)])
    kept = json.loads(only_file(tmp_path).read_text())["measurements"]
    assert list(kept) == [make_signature_key(relu(2)), make_signature_key(relu(3))]


def test_the_variable_names_the_folder(
    tmp_path: Path, measured: list[OperatorSignature], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRX_CACHE_DIR", str(tmp_path / "named"))
    MeasuredOperators("cpu").measure([relu(1)])
    assert only_file(tmp_path / "named")


def test_other_settings_are_another_environment(tmp_path: Path, measured: list[OperatorSignature]) -> None:
    MeasuredOperators("cpu", directory=tmp_path).measure([relu(1)])
    before = get_measurement_environment("cpu").fingerprint
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert get_measurement_environment("cpu").fingerprint != before
        MeasuredOperators("cpu", directory=tmp_path).measure([relu(1)])
    finally:
        torch.set_num_threads(threads)
    assert measured == [relu(1), relu(1)]
    assert get_measurement_environment("cpu").fingerprint == before


def test_environment_names_the_torch_and_onednn_versions() -> None:
    environment = get_measurement_environment("cpu")
    assert environment.torch == torch.__version__
    assert environment.onednn in torch.__config__.show() or environment.onednn == "none"


def test_groups_are_scaled_to_known_times() -> None:
    a, b, c, d, e = map(relu, range(1, 6))
    taken = {a: 2.0, b: 6.0, c: 4.0, d: 5.0}
    # The machine is half as fast as when `a` was timed.
    assert scale_to_known([(a, b, e), (c, d)], taken, {a: 1.0}) == {a: 1.0, b: 3.0, c: 4.0, d: 5.0}
    assert scale_to_known([(a, b, c)], taken, {a: 1.0, b: 4.0}) == {a: 1.0, b: 4.0, c: 4.0 / 1.75}


def test_known_times_stay_when_more_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slowness = [1.0]

    def time_variants(groups: Iterable[Sequence[OperatorSignature]], **_how: object) -> dict[OperatorSignature, float]:
        return {s: slowness[0] * s.tensors[0].shape[0] for group in groups for s in group}

    monkeypatch.setattr(measurement_cache, "time_variants", time_variants)
    monkeypatch.setattr(measurement_cache, "watch_disturbance", lambda: nullcontext(lambda: False))
    MeasuredOperators("cpu", directory=tmp_path).time([(relu(1), relu(2))])
    slowness[0] = 3.0
    MeasuredOperators("cpu", directory=tmp_path).time([(relu(2), relu(5))])
    later = MeasuredOperators("cpu", directory=tmp_path)
    later.time([(relu(1), relu(5))])
    assert [later.seconds(relu(size)) for size in (1, 2, 5)] == [1.0, None, 5.0]


def test_keys_are_unique_per_signature() -> None:
    def call(*args: object, **kwargs: object) -> OperatorSignature:
        return OperatorSignature("aten.op.default", args, tuple(sorted(kwargs.items())))

    signatures = [
        call(TENSOR),
        call(TensorSpec((4, 8), (8, 1), torch.float32, "cpu")),
        call(TensorSpec((4, 8), (1, 4), torch.bfloat16, "cpu")),
        call(TensorSpec((4, 8), (1, 4), torch.float32, "cuda")),
        call((TENSOR,)),
        call(TENSOR, 1),
        call(TENSOR, True),
        call(TENSOR, "1"),
        call(TENSOR, 1.0),
        call(TENSOR, (1, 2)),
        call(TENSOR, (1,), 2),
        call(TENSOR, None),
        call(TENSOR, torch.float32),
        call(TENSOR, torch.channels_last),
        call(TENSOR, dim=1),
        call(TENSOR, other=1),
    ]
    keys = [make_signature_key(signature) for signature in signatures]
    assert len(set(keys)) == len(keys)
    assert keys[0] == "aten.op.default(float32[4x8|1x4]@cpu)"
