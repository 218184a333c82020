"""The thin client against a broker in a process of its own."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.client.cluster import Cluster, CoordinatorKind, check, parse_addresses
from millstream.errors import ApiError, ConfigError, ErrorCode
from millstream.records.columns import decode_columns
from millstream.records.record import Record, encode_batch
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, free_port, start_millstream


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_millstream(tmp_path_factory.mktemp("client") / "data")
    yield running
    running.stop()


def create_topic(cluster: Cluster, partitions: int = 1) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    answer = cluster.any_connection().call("create_topics", {"topics": [topic], "timeout": 5000})
    check(answer.topics[0].error_code, name)
    return name


def produce(cluster: Cluster, topic: str, batch: bytes) -> int:
    answer = cluster.ask_leader(
        topic,
        0,
        "produce",
        {
            "acks": -1,
            "timeout": 5000,
            "topic_data": [
                {"name": topic, "partition_data": [{"index": 0, "records": batch}]},
            ],
        },
        version=12,
        error_of=lambda it: it.responses[0].partition_responses[0].error_code,
    )
    return int(answer.responses[0].partition_responses[0].base_offset)


def fetch(cluster: Cluster, topic: str, offset: int) -> list[bytes]:
    info = cluster.topic(topic)
    answer = cluster.ask_leader(
        topic,
        0,
        "fetch",
        {
            "max_wait": 100,
            "min_bytes": 1,
            "max_bytes": 1_000_000,
            "session_epoch": -1,
            "topics": [
                {
                    "topic_id": info.id,
                    "partitions": [
                        {
                            "partition": 0,
                            "current_leader_epoch": -1,
                            "fetch_offset": offset,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": 1_000_000,
                        }
                    ],
                }
            ],
        },
    )
    records = answer.responses[0].partitions[0].records
    columns = decode_columns(records, first_offset=offset)
    ends = memoryview(columns.values.offsets).cast("i")
    data = bytes(columns.values.data)
    return [data[ends[i] : ends[i + 1]] for i in range(columns.row_count)]


def test_cluster_reads_what_it_wrote(server: Server) -> None:
    with Cluster(server.bootstrap) as cluster:
        topic = create_topic(cluster)
        batch = encode_batch([Record(i, i, None, b"%d" % i) for i in range(3)])
        assert produce(cluster, topic, batch) == 0
        assert produce(cluster, topic, batch) == 3
        assert fetch(cluster, topic, 2) == [b"2", b"0", b"1", b"2"]


def test_cluster_names_a_topic_and_a_partition_that_are_not_there(server: Server) -> None:
    with Cluster(server.bootstrap) as cluster:
        with pytest.raises(ApiError, match="no topic nowhere") as unknown:
            cluster.topic("nowhere")
        assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = create_topic(cluster, partitions=2)
        with pytest.raises(ApiError, match="has no partition 7; it has 2 partitions"):
            cluster.leader(topic, 7)


def test_cluster_waits_as_long_for_a_missing_topic_as_it_is_asked_to(server: Server) -> None:
    attempts: list[str] = []

    def ask(cluster: Cluster) -> None:
        attempts.append("nowhere")
        cluster.topic(create_topic(cluster) if len(attempts) == 3 else "nowhere")

    with Cluster(server.bootstrap, missing_topic_seconds=0) as cluster:
        with pytest.raises(ApiError, match="no topic nowhere"):
            cluster.retrying(lambda: ask(cluster))
        assert len(attempts) == 1
    with Cluster(server.bootstrap, missing_topic_seconds=PATIENCE_SECONDS) as cluster:
        cluster.retrying(lambda: ask(cluster))
        assert len(attempts) == 3
        missing = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        other = ApiError(ErrorCode.NOT_COORDINATOR, "")
        waits = (cluster.retry_seconds(missing), cluster.retry_seconds(other))
        assert waits == (PATIENCE_SECONDS, 60.0)


def test_cluster_finds_the_coordinator_of_a_group(server: Server) -> None:
    with Cluster(server.bootstrap) as cluster:
        broker_id = cluster.coordinator(CoordinatorKind.GROUP, "some-group")
        answer = cluster.ask_coordinator(
            CoordinatorKind.GROUP,
            "some-group",
            "describe_groups",
            {"groups": ["some-group"]},
            error_of=lambda it: it.groups[0].error_code,
        )
        assert broker_id in {int(it) for it in cluster._addresses}
        assert answer.groups[0].group_id == "some-group"


def test_cluster_asks_for_its_brokers_again_only_where_that_is_wanted(tmp_path: Path) -> None:
    server = start_millstream(tmp_path / "data")
    with Cluster(server.bootstrap) as cluster:
        known = cluster.broker_ids()
        server.stop()
        cluster.timeout_seconds = cluster.request_timeout_seconds = 0.2
        assert cluster.broker_ids(seconds_old_max=60) == known
        with pytest.raises(OSError, match="gave up"):
            cluster.broker_ids()
        with pytest.raises(OSError, match="gave up"):  # nothing is believed any more
            cluster.broker_ids(seconds_old_max=60)


def test_cluster_asks_for_a_topic_again_only_where_that_is_wanted(server: Server) -> None:
    with Cluster(server.bootstrap) as cluster, Cluster(server.bootstrap) as other:
        topic = create_topic(cluster)
        assert len(cluster.topic(topic).partitions) == 1
        grown = {"name": topic, "count": 3, "assignments": None}
        other.any_connection().call(
            "create_partitions", {"topics": [grown], "timeout": 5000, "validate_only": False}
        )
        assert len(cluster.topic(topic, seconds_old_max=60).partitions) == 1
        assert len(cluster.topic(topic, seconds_old_max=0).partitions) == 3
        assert len(cluster.topic(topic).partitions) == 3


def test_cluster_rides_out_a_restart(tmp_path: Path) -> None:
    port = free_port()
    server = start_millstream(tmp_path / "data", port=port)
    with Cluster(server.bootstrap, timeout_seconds=PATIENCE_SECONDS) as cluster:
        topic = create_topic(cluster)
        produce(cluster, topic, encode_batch([Record(0, 0, None, b"before")]))
        server.kill()
        server = start_millstream(tmp_path / "data", port=port)
        try:
            assert fetch(cluster, topic, 0) == [b"before"]
        finally:
            server.stop()


def test_late_answer_is_not_taken_for_that_of_the_next_request(tmp_path: Path) -> None:
    server = start_millstream(tmp_path / "data")
    try:
        with Cluster(server.bootstrap, timeout_seconds=PATIENCE_SECONDS) as cluster:
            (broker_id,) = cluster.broker_ids()
            connection = cluster.connection(broker_id)
            cluster.timeout_seconds = 0.0  # gives up at once
            connection._socket.settimeout(0.2)
            server.process.send_signal(signal.SIGSTOP)
            with pytest.raises(OSError, match="gave up"):
                cluster.ask_broker(broker_id, "describe_log_dirs", {"topics": None})
            server.process.send_signal(signal.SIGCONT)
            cluster.timeout_seconds = PATIENCE_SECONDS
            answer = cluster.ask_broker(broker_id, "list_groups", {})
            assert list(answer.groups) == []
    finally:
        server.kill()


def test_cluster_says_whom_it_could_not_reach() -> None:
    port = free_port()
    cluster = Cluster(f"127.0.0.1:{port}", timeout_seconds=0.2)
    with pytest.raises(ConnectionError, match=f"no broker can be reached.*127.0.0.1:{port}"):
        cluster.refresh()


def test_cluster_refuses_what_is_no_address() -> None:
    assert parse_addresses("a:1, [::1]:2") == [("a", 1), ("::1", 2)]
    with pytest.raises(ConfigError, match="'localhost' is not an address; write host:port"):
        Cluster("localhost")


def test_another_broker_answers_for_one_that_hangs(tmp_path: Path) -> None:
    servers = [start_millstream(tmp_path / name) for name in ("first", "second")]
    try:
        addresses = ",".join(it.bootstrap for it in servers)
        with Cluster(addresses, timeout_seconds=1.0) as cluster:
            cluster.refresh([])
            servers[0].process.send_signal(signal.SIGSTOP)
            assert list(cluster.retrying(lambda: cluster.refresh([]))) == []
            # From now on it is not asked first.
            cluster.close()
            assert cluster.any_connection().address == parse_addresses(servers[1].bootstrap)[0]
    finally:
        for it in servers:
            it.kill()


def test_broker_that_hangs_is_not_asked_again_if_there_is_no_other(tmp_path: Path) -> None:
    server = start_millstream(tmp_path / "data")
    attempts = []
    try:
        with Cluster(server.bootstrap, timeout_seconds=1.0) as cluster:
            cluster.refresh([])
            server.process.send_signal(signal.SIGSTOP)

            def ask() -> None:
                attempts.append(len(attempts))
                cluster.refresh([])

            with pytest.raises(ConnectionError):
                cluster.retrying(ask)
        assert len(attempts) == 1
    finally:
        server.kill()
