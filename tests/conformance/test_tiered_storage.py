"""Topics with remote.storage.enable: what clients see of the archive is what they see of Apache
Kafka's tiered storage, with the storage manager of Kafka's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.errors import ApiError
from tests.broker.archiving.scenes import (
    SEGMENT_BYTES,
    START_MS,
    alter,
    check_records,
    consume,
    create,
    keep_little,
    produce,
)
from tests.peers.kafka import start_kafka, tiered_settings
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.servers import Server, start_millstream
from tests.peers.wire import Wire

pytestmark = pytest.mark.slow

COUNT = 300
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
QUICK = {
    "remote.log.manager.task.interval.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
}


class Subject:
    """A broker whose topics are archived, as the scenes of archives use one."""

    def __init__(self, server: Server, remote: Path) -> None:
        self.server = server
        self.remote = remote
        self.bootstrap_servers = server.bootstrap

    def offset(self, timestamp: int, topic: str = "orders") -> int:
        """By ListOffsets."""
        partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        asked = ({"name": topic, "partitions": (partition,)},)
        with Wire(self.bootstrap_servers) as wire:
            answer = wire.call("list_offsets", 9, replica_id=-1, isolation_level=0, topics=asked)
        found = answer.topics[0].partitions[0]
        assert found.error_code == 0, found
        return int(found.offset)

    def files(self, topic: str) -> list[Path]:
        """That are remote."""
        return [it for it in self.remote.rglob("*") if it.is_file() and topic in str(it.parent)]


@pytest.fixture(
    scope="module", params=["millstream", pytest.param("apache-kafka", marks=pytest.mark.java)]
)
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp(request.param)
    remote = directory / "remote"
    if request.param == "millstream":
        given = {**QUICK, "millstream.archive.path": str(remote)}
        server = start_millstream(directory / "data", given)
    else:
        given = {**QUICK, **tiered_settings(remote)}
        server = start_kafka(directory, given, bundle="kafka-tiered")
    yield Subject(server, remote)
    server.stop()


def tiered(subject: Any, topic: str, **config: object) -> int:
    """A topic of which most is remote only. Returns where the log on the broker starts."""
    create(subject, topic, **config)
    produce(subject, 0, COUNT, topic)
    keep_little(subject, topic)
    wait_until(lambda: subject.offset(EARLIEST_LOCAL, topic) > COUNT // 2)
    return int(subject.offset(EARLIEST_LOCAL, topic))


def test_offsets_of_all_kinds(subject: Any) -> None:
    local = tiered(subject, "offsets")
    assert subject.offset(EARLIEST, "offsets") == 0
    assert subject.offset(LATEST, "offsets") == COUNT
    assert local <= subject.offset(LATEST_TIERED, "offsets") + 1 < COUNT
    assert subject.offset(MAX_TIMESTAMP, "offsets") == COUNT - 1
    for number in (0, 17, local - 1, local, COUNT - 1):
        assert subject.offset(START_MS + number, "offsets") == number
    assert subject.offset(START_MS + COUNT, "offsets") == -1
    create(subject, "plain", remote_storage_enable="false")
    produce(subject, 0, 10, "plain")
    assert subject.offset(EARLIEST_LOCAL, "plain") == 0
    assert subject.offset(LATEST_TIERED, "plain") == -1


def test_consumers_read_on_from_remote_to_local(subject: Any) -> None:
    local = tiered(subject, "read")
    for first in (0, 37, local - 1, local):
        check_records(consume(subject, COUNT, "read", first), first, COUNT)
    committed = {"isolation.level": "read_committed"}
    check_records(consume(subject, COUNT, "read", **committed), 0, COUNT)
    produce(subject, COUNT, COUNT + 50, "read")
    check_records(consume(subject, COUNT + 50, "read", COUNT - 60), COUNT - 60, COUNT + 50)


def test_retention_of_all_of_it_reaches_what_is_remote(subject: Any) -> None:
    tiered(subject, "retained", retention_bytes=3 * SEGMENT_BYTES)
    wait_until(lambda: subject.offset(EARLIEST, "retained") > 0)

    def is_read_from_its_start() -> bool:
        start = subject.offset(EARLIEST, "retained")
        assert start < COUNT
        try:
            found = consume(subject, COUNT, "retained", start)
        except AssertionError:  # the start has moved on meanwhile
            return False
        check_records(found, start, COUNT)
        return True

    wait_until(is_read_from_its_start)


def test_deleted_records_are_deleted_from_what_is_remote(subject: Any) -> None:
    tiered(subject, "shortened")
    admin = AdminClient({"bootstrap.servers": subject.bootstrap_servers})
    wanted = TopicPartition("shortened", 0, 45)
    deleted = admin.delete_records([wanted])[TopicPartition("shortened", 0)]
    assert deleted.result(PATIENCE_SECONDS).low_watermark == 45
    assert subject.offset(EARLIEST, "shortened") == 45
    check_records(consume(subject, COUNT, "shortened", 45), 45, COUNT)
    with pytest.raises(AssertionError, match=r"[Oo]ffset out of range|OFFSET_OUT_OF_RANGE"):
        consume(subject, COUNT, "shortened", 10)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"remote_storage_enable": "false"}, "without deleting remote data"),
        ({"remote_log_copy_disable": "true"}, "must be set to the identical value"),
        ({"local_retention_ms": 10**15, "retention_ms": 10}, "Value must not be more than"),
        ({"local_retention_bytes": -1, "retention_bytes": 10}, "Value must not be -1"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    subject: Any, config: dict[str, Any], problem: str
) -> None:
    topic = f"refused-{'-'.join(config)}"
    create(subject, topic, local_retention_bytes=1000)
    with pytest.raises(ApiError, match=problem):
        alter(subject, topic, **config)


def test_disabled_storage_is_deleted(subject: Any) -> None:
    local = tiered(subject, "disabled")
    settings = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
    alter(subject, "disabled", **settings, local_retention_bytes=-2)
    wait_until(lambda: subject.offset(EARLIEST, "disabled") >= local)
    start = subject.offset(EARLIEST, "disabled")
    check_records(consume(subject, COUNT, "disabled", start), start, COUNT)
    wait_until(lambda: not [it for it in subject.files("disabled") if it.suffix != ".json"])


def test_deleted_topic_leaves_nothing_and_can_be_created_again(subject: Any) -> None:
    tiered(subject, "again")
    admin = AdminClient({"bootstrap.servers": subject.bootstrap_servers})
    admin.delete_topics(["again"])["again"].result(PATIENCE_SECONDS)
    wait_until(lambda: not subject.files("again"))
    tiered(subject, "again")
    check_records(consume(subject, COUNT, "again"), 0, COUNT)
