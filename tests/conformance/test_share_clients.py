"""Real share consumers, the same story in three languages, and Apache's share tools."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from millstream.coordination.share_state import DeliveryState
from tests.conformance.brokers import BrokerUnderTest
from tests.conformance.conftest import client_parameters
from tests.conformance.queues import QUEUE_SETTINGS, Queue
from tests.peers.cache import PeerMissing
from tests.peers.java_runtime import ToolRunner, java_program
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.share_consumers import SHARE_CLIENTS, Delivered, ShareConsumer, Told
from tests.peers.share_member import ACCEPT, REJECT, RELEASE, RENEW

pytestmark = pytest.mark.xdist_group("share-clients")

OWN_SETTINGS = QUEUE_SETTINGS


def clients(*names: str) -> Any:
    return pytest.mark.parametrize(
        "client", client_parameters(*names or SHARE_CLIENTS), indirect=True
    )


@pytest.fixture
def client(request: pytest.FixtureRequest) -> str:
    """A client's name, made ready or skipped with the reason."""
    name: str = request.param
    try:
        SHARE_CLIENTS[name].prepare()
    except PeerMissing as missing:
        pytest.skip(f"{name}: {missing}")
    return name


def numbered(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def values(records: list[Delivered]) -> list[str]:
    return [record.value for record in records]


@pytest.mark.slow_with("java")
@clients()
def test_client_accepts_implicitly_what_it_polled_before(
    own_broker: BrokerUnderTest, client: str
) -> None:
    queue = Queue(own_broker)
    queue.produce(*numbered(10))
    with queue.join(client, explicit=False) as consumer:
        first = consumer.receive()
        queue.produce(*numbered(10, first=10))
        second = consumer.receive()  # which accepts the first ones
        assert values(first + second) == numbered(20)
        assert consumer.commit() == {0: None}  # and this the second ones
        queue.produce("20")
        assert values(consumer.receive()) == ["20"]  # and this one is accepted by nobody
    with queue.join(client) as successor:
        assert successor.receive() == [Delivered(0, 20, "20", 2)]


@clients()
def test_client_accepts_releases_and_rejects(own_broker: BrokerUnderTest, client: str) -> None:
    queue = Queue(own_broker)
    queue.produce(*numbered(10))
    with queue.join(client) as consumer:
        records = consumer.receive()
        assert records == [Delivered(0, number, str(number), 1) for number in range(10)]
        consumer.acknowledge(records[:4], ACCEPT)
        consumer.acknowledge(records[4:7], RELEASE)
        consumer.acknowledge(records[7:], REJECT)
        assert consumer.commit() == {0: None}
        again = consumer.receive()
        assert again == [Delivered(0, number, str(number), 2) for number in (4, 5, 6)]
        consumer.acknowledge(again[:1], REJECT)
        consumer.acknowledge(again[1:], ACCEPT)
        assert consumer.commit() == {0: None}
        queue.produce("the end")
        assert values(consumer.receive()) == ["the end"]


@pytest.mark.slow_with("java")
@clients()
def test_client_sees_deliveries_counted_up_to_the_limit(
    own_broker: BrokerUnderTest, client: str
) -> None:
    queue = Queue(own_broker, share_delivery_count_limit=3)
    queue.produce("bad")
    with queue.join(client) as consumer:
        for count in (1, 2, 3):
            records = consumer.receive()
            assert records == [Delivered(0, 0, "bad", count)]
            consumer.acknowledge(records, RELEASE)
            assert consumer.commit() == {0: None}
        queue.produce("good")
        assert consumer.receive() == [Delivered(0, 1, "good", 1)]


@clients()
def test_client_s_records_come_again_after_kill_9(own_broker: BrokerUnderTest, client: str) -> None:
    queue = Queue(own_broker)
    queue.produce(*numbered(5))
    with queue.join(client) as victim:
        assert len(victim.receive()) == 5
        with queue.join() as witness:
            victim.kill()
            again = witness.receive()
    assert again == [Delivered(0, number, str(number), 2) for number in range(5)]


@pytest.mark.slow_with("java")
@clients()
def test_client_is_refused_when_its_lock_has_run_out(
    own_broker: BrokerUnderTest, client: str
) -> None:
    queue = Queue(own_broker, share_record_lock_duration_ms=1_000)
    queue.produce("slow")
    with queue.join(client) as slow:
        late = slow.receive()
        with queue.join() as other:
            (again,) = other.receive()
            assert again[:3] == (0, 0, "slow")
            assert again.delivery_count >= 2  # a client that fetches ahead had it again, maybe
            slow.acknowledge(late, ACCEPT)
            assert slow.commit() == {0: "INVALID_RECORD_STATE"}
            assert told(slow) in (
                [(0, [0], "INVALID_RECORD_STATE")],
                [(0, [], "INVALID_RECORD_STATE")],
            )
            assert other.commit() in ({}, {0: None})


@pytest.mark.slow_with("java")
@clients("java", "franz-go")
def test_client_renews_its_lock(own_broker: BrokerUnderTest, client: str) -> None:
    queue = Queue(own_broker, share_record_lock_duration_ms=5_000)
    queue.produce("takes long")
    with queue.join(client) as consumer, queue.join() as other:
        records = consumer.receive()
        deadline = time.monotonic() + 6
        while time.monotonic() < deadline:
            consumer.acknowledge(records, RENEW)
            assert consumer.commit() == {0: None}
            if client == "java":  # which gives a renewed record to its application again
                records = consumer.receive()
            assert records == [Delivered(0, 0, "takes long", 1)]
            assert other.poll(0.2) == []
        consumer.acknowledge(records, ACCEPT)
        assert consumer.commit() == {0: None}


@pytest.mark.slow_with("java")
@clients("java", "franz-go")
def test_client_keeps_to_its_record_limit(own_broker: BrokerUnderTest, client: str) -> None:
    """Records of one batch of the log go to two consumers; one may fetch ahead of its polls."""
    queue = Queue(own_broker)
    queue.produce(*numbered(20))
    limits = {"max_poll_records": 5, "share_acquire_mode": "record_limit"}
    with queue.join(client, **limits) as first, queue.join(client, **limits) as second:
        one, two = first.receive(), second.receive()
        assert len(one) == len(two) == 5
        assert len({*values(one + two)} & {*numbered(20)}) == 10


@clients()
def test_client_hears_of_its_acknowledgements(own_broker: BrokerUnderTest, client: str) -> None:
    queue = Queue(own_broker)
    queue.produce(*numbered(4))
    with queue.join(client) as consumer:
        records = consumer.receive()
        consumer.acknowledge(records[:3], ACCEPT)
        consumer.acknowledge(records[3:], RELEASE)
        assert consumer.commit() == {0: None}
        offsets = [] if client == "franz-go" else [0, 1, 2, 3]  # which says partitions only
        assert told(consumer) == [Told(0, offsets, None)]


def told(consumer: ShareConsumer) -> list[Told]:
    """What its callback hears next."""
    heard: list[Told] = []

    def has_heard() -> bool:
        heard.extend(consumer.callbacks())
        return bool(heard)

    wait_until(has_heard)
    return heard


@pytest.mark.slow_with("java")
@clients()
def test_redelivery_changes_the_order(own_broker: BrokerUnderTest, client: str) -> None:
    """m1 m2 m3 m4 m5 become m1 m2 m4 m3 m5: the second consumer took m3 and died, while the first
    had m4. A client that fetches ahead may hold others by then: m3 comes again after what the
    first had, and everything comes once."""
    everything = ["m1", "m2", "m3", "m4", "m5"]
    queue = Queue(own_broker)
    queue.produce_each(everything)
    with (
        queue.join(client, max_poll_records=1) as first,
        queue.join(client, max_poll_records=1) as second,
    ):
        processed = [process_one(first), process_one(first)]
        assert values(second.receive()) == ["m3"]
        in_work = first.receive()
        second.kill()
        wait_until(lambda: 2 in queue.in_state(DeliveryState.AVAILABLE))
        first.acknowledge(in_work)
        assert first.commit() == {0: None}
        processed += values(in_work)
        while len(processed) < len(everything):
            processed.append(process_one(first))
    assert processed[:2] == ["m1", "m2"]
    assert processed[2] in ("m4", "m5")
    assert sorted(processed) == everything


def process_some(consumer: ShareConsumer) -> list[Delivered]:
    records = consumer.receive()
    consumer.acknowledge(records)
    assert consumer.commit() == {0: None}
    return records


def process_one(consumer: ShareConsumer) -> str:
    (record,) = process_some(consumer)
    return record.value


@pytest.mark.slow_with("java")
@clients()
def test_client_shares_a_partition_with_others(own_broker: BrokerUnderTest, client: str) -> None:
    """Each record goes to one of them, whatever language they speak."""
    queue = Queue(own_broker)
    queue.produce_each(numbered(100))
    others = [queue.join(name, max_poll_records=5) for name in ("confluent", "confluent")]
    consumers = [queue.join(client, max_poll_records=5), *others]
    try:
        taken = [process_some(consumer) for consumer in consumers]  # each has joined by then
        while sum(map(len, taken)) < 100:
            for consumer, records in zip(consumers, taken, strict=True):
                some = consumer.poll(0.2)
                consumer.acknowledge(some)
                assert set(consumer.commit().values()) <= {None}
                records += some
    finally:
        for consumer in consumers:
            consumer.kill()
    assert all(taken)
    together = [record for records in taken for record in records]
    assert sorted(record.offset for record in together) == list(range(100))
    assert {record.delivery_count for record in together} == {1}


# --- Apache's tools --------------------------------------------------------------------------


@pytest.mark.java
def test_console_share_consumer_rejects_and_releases(
    own_broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    queue = Queue(own_broker)
    queue.produce(*numbered(5))

    def console(*options: str) -> list[str]:
        result = tools.check(
            "consumer.ConsoleShareConsumer",
            *("--bootstrap-server", own_broker.bootstrap, "--topic", queue.topic),
            *("--group", queue.group, "--max-messages", "5", "--timeout-ms", "30000"),
            *("--formatter-property", "print.delivery=true", *options),
        )
        return sorted(result.lines)

    assert console("--release") == [f"Delivery:1\t{number}" for number in range(5)]
    assert console("--reject") == [f"Delivery:2\t{number}" for number in range(5)]
    queue.produce(*numbered(5, first=5))
    assert console() == [f"Delivery:1\t{number}" for number in range(5, 10)]


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.parametrize(
    "mode", ["auto", *(pytest.param(it, marks=pytest.mark.slow) for it in ("sync", "async"))]
)
def test_verifiable_share_consumer_reads_everything(own_broker: BrokerUnderTest, mode: str) -> None:
    queue = Queue(own_broker, partitions=2)
    queue.produce(*numbered(60))
    queue.produce(*numbered(40), partition=1)
    arguments = [
        *("--bootstrap-server", own_broker.bootstrap, "--topic", queue.topic),
        *("--group-id", queue.group, "--max-messages", "100", "--acknowledgement-mode", mode),
        *("--offset-reset-strategy", "earliest"),
    ]
    command = [*java_program("org.apache.kafka.tools.VerifiableShareConsumer"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    events = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    counts = {"records_consumed": 0, "offsets_acknowledged": 0}
    for event in events:
        if event["name"] in counts:
            counts[event["name"]] += event["count"]
            assert event.get("success", True), event
    assert counts == {"records_consumed": 100, "offsets_acknowledged": 100}, result


@pytest.mark.slow
@pytest.mark.java
def test_share_consumer_performance_runs_to_its_end(
    own_broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    queue = Queue(own_broker, partitions=2)
    for _ in range(20):
        queue.produce(*numbered(500))
    result = tools.check(
        "ShareConsumerPerformance",
        *("--bootstrap-server", own_broker.bootstrap, "--topic", queue.topic),
        *("--group", queue.group, "--num-records", "10000", "--threads", "2"),
        *("--timeout", "100000"),
    )
    *_, names, measured = (line.split(", ") for line in result.lines)
    assert int(dict(zip(names, measured, strict=True))["data.consumed.in.nMsg"]) >= 10_000
