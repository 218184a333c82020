"""Topics that are made when they are missing; `test_pipelines.py` follows one."""

from __future__ import annotations

from millstream.admin.following import BoardFollower, TopicFollower, create_missing, write_records
from millstream.client.cluster import Cluster


class Taken(list[tuple[bytes | None, bytes | None]]):
    def take(
        self, key: bytes | None, value: bytes | None, time_ms: int, came_ms: int | None = None
    ) -> None:
        self.append((key, value))


def test_topics_are_made_once_and_followed(cluster: Cluster, name: str) -> None:
    follower = BoardFollower(name, Taken)
    assert follower.update(cluster) == []
    assert not follower.exists
    for _ in range(2):
        create_missing(cluster, {name: {"cleanup.policy": "compact"}})
    write_records(cluster, name, [("a", b"1"), ("b", None)])
    assert follower.update(cluster) == [(b"a", b"1"), (b"b", None)]
    assert follower.exists
    write_records(cluster, name, [("c", b"3")])
    assert follower.update(cluster, seconds_old_max=3600)[-1] == (b"b", None)
    assert follower.update(cluster)[-1] == (b"c", b"3")
    assert [it.key for it in TopicFollower(name).read(cluster)] == [b"a", b"b", b"c"]
