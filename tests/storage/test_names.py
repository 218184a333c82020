"""What files and directories are called."""

from __future__ import annotations

import pytest

from millstream.storage import names


def test_offset_file_has_twenty_digits() -> None:
    path = names.offset_file("/data/t-0", 1042, names.INDEX_SUFFIX)
    assert path == "/data/t-0/00000000000000001042.index"
    assert names.parse_offset_file("00000000000000001042.index") == (1042, ".index")


@pytest.mark.parametrize("name", ["1042.log", "leader-epoch-checkpoint", "0" * 20 + ".log.swap"])
def test_offset_file_is_not_seen_in_other_names(name: str) -> None:
    assert names.parse_offset_file(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b-12", ("a-b", 12)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
        ("orders-0.3f2504e04f8911d39a0c0305e82c3301-delete", None),
        ("orders-0.3f2504e04f8911d39a0c0305e82c3301-future", None),
        ("lost+found", None),
        ("orders", None),
    ],
)
def test_partition_directory_is_recognised(name: str, expected: tuple[str, int] | None) -> None:
    assert names.parse_partition_directory(name) == expected
