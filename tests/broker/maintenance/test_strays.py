"""A broker whose partition was moved away while it was down."""

from __future__ import annotations

from pathlib import Path

from millstream.coordination.cluster_records import PartitionChangeRecord
from millstream.errors import ErrorCode
from millstream.storage.strays import METADATA_VERSION
from tests.broker.replication.cluster import Cluster, run


async def move_away(cluster: Cluster) -> None:
    """Broker 2 loses its replica of t, which has a record, while it is down."""
    await cluster.create_topic("t", 1, 2)
    produced = await cluster.produce(1, "t", b"a", timeout_ms=50_000)
    assert produced == (ErrorCode.NONE, 0)
    await cluster.stop(2)
    topic_id = cluster.image.topics["t"].id
    moved = PartitionChangeRecord(0, topic_id, isr=(1,), replicas=(1,))
    await cluster.homes[1].change(lambda image: [moved])


def strays(directory: Path) -> list[Path]:
    return list((directory / "2").glob("t-0.*-stray"))


def test_log_of_a_partition_that_was_moved_away_is_deleted_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await move_away(cluster)
            broker = await cluster.start(2)
            (stray,) = strays(tmp_path)
            broker.strays.review()
            assert strays(tmp_path) == [stray], "its time has not come"
            await cluster.stop(2)
            broker = await cluster.start(2, millstream_stray_delay_ms=-1)
            broker.strays.review()
            assert strays(tmp_path) == [stray], "strays are not deleted"
            await cluster.stop(2)
            broker = await cluster.start(2, millstream_stray_delay_ms=0)
            broker.strays.review()
            assert strays(tmp_path) == []
            broker.directories.sweep()
            assert not list((tmp_path / "2").glob("t-0*"))
            seen = (tmp_path / "2" / METADATA_VERSION).read_text()
            assert int(seen) == cluster.image.version

    run(main)


def test_nothing_is_deleted_if_the_metadata_is_older_than_what_the_broker_has_seen(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await move_away(cluster)
            seen = tmp_path / "2" / METADATA_VERSION
            newer = f"{cluster.image.version + 1000}\n"
            seen.write_text(newer)
            broker = await cluster.start(2, millstream_stray_delay_ms=0)
            broker.strays.review()
            assert len(strays(tmp_path)) == 1
            assert seen.read_text() == newer
            await cluster.stop(2)
            seen.unlink()  # as if the metadata had caught up: the stray is kept all the same
            broker = await cluster.start(2, millstream_stray_delay_ms=0)
            broker.strays.review()
            assert len(strays(tmp_path)) == 1

    run(main)
