"""The versions that workers have published."""

from __future__ import annotations

from millstream.broker.metadata.seen import SeenVersions
from millstream.testing.filesystem import MemoryFileSystem


def test_versions_of_others_are_seen() -> None:
    fs = MemoryFileSystem()
    one, two = SeenVersions(fs, "/seen", 1), SeenVersions(fs, "/seen", 2)
    assert not one.are_at(0, [2])
    two.publish(7)
    assert one.are_at(7, [2])
    assert not one.are_at(8, [2])
    assert not one.are_at(7, [2, 3])
    two.publish(300)
    assert one.are_at(300, [2])
    assert one.are_at(1_000, [])
    one.close()
    two.close()
