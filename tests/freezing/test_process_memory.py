import numpy as np
import pytest

from frx_graph.freezing.process_memory import gather, word_at


@pytest.mark.parametrize("unit", [1, 2, 4, 8])
def test_what_lies_at_each_address_is_read_in_order(unit: int) -> None:
    values = np.arange(64, dtype=f"u{unit}") * 3
    other = np.arange(8, dtype=f"u{unit}")
    places = [values.ctypes.data + i * unit for i in (5, 0, 63, 5)] + [other.ctypes.data + 2 * unit]
    read = gather(places, unit)
    assert np.frombuffer(read(), dtype=f"u{unit}").tolist() == [15, 0, 189, 15, 2]
    values[0] = 7
    assert np.frombuffer(read(), dtype=f"u{unit}").tolist() == [15, 7, 189, 15, 2]


def test_nothing_is_read_where_there_is_nothing_to_read() -> None:
    assert gather([], 8)() == b""


def test_a_word_is_eight_bytes() -> None:
    values = np.array([1, 2**63 + 5], dtype="u8")
    assert [word_at(values.ctypes.data + 8 * i) for i in range(2)] == [1, 2**63 + 5]
