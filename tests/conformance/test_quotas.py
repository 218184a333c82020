"""Client quotas: set and described alike, and enforced by every broker, also on clients that do not
wait by themselves.

Times are only compared with lower bounds: a slow machine makes everything later. How much is
throttled exactly is tested with a clock that stands still: `tests/broker/network/test_quotas.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.conftest import client_parameters
from tests.peers.clients import CLIENTS
from tests.peers.java_runtime import ToolRunner
from tests.peers.patience import wait_until
from tests.peers.programs import Record
from tests.peers.wire import ConnectionEnded, Wire, batch

OWN_SETTINGS = {"quota.window.num": "3", "controller.quota.window.num": "3"}
WHOLE_SECONDS = 2  # of the window, without its current sample
INVALID_REQUEST, UNSUPPORTED_VERSION, THROTTLING_QUOTA_EXCEEDED = 42, 35, 89
EXACT, BY_DEFAULT, ANY = 0, 1, 2


def alter(broker: BrokerUnderTest, entity: dict[str, str | None], **values: float | None) -> Any:
    """Set quotas, or (None) remove them; the answer for the entity."""
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    operations = [
        {"key": key, "value": float(value or 0), "remove": value is None}
        for key, value in values.items()
    ]
    with Wire(broker.bootstrap, client_id="admin") as wire:
        answer = wire.call("alter_client_quotas", 1, entries=[{"entity": parts, "ops": operations}])
    (entry,) = answer.entries
    return entry


def describe(broker: BrokerUnderTest, *components: tuple[str, int, str | None]) -> Any:
    filters = [
        {"entity_type": kind, "match_type": match, "match": name}
        for kind, match, name in components
    ]
    with Wire(broker.bootstrap, client_id="admin") as wire:
        return wire.call("describe_client_quotas", 1, components=filters, strict=True)


def limit(broker: BrokerUnderTest, entity: dict[str, str | None], **values: float) -> None:
    """Set quotas, and wait until the broker has them: Apache Kafka answers before that."""
    assert alter(broker, entity, **values).error_code == 0
    components = [
        (kind, BY_DEFAULT if name is None else EXACT, name) for kind, name in entity.items()
    ]
    wait_until(lambda: len(describe(broker, *components).entries) == 1)


@pytest.mark.parametrize(
    ("entity", "values", "message"),
    [
        ({}, {"producer_byte_rate": 1}, "Invalid empty client quota entity"),
        ({"group": "g"}, {"producer_byte_rate": 1}, "Unhandled client quota entity type: group"),
        ({"user": ""}, {"producer_byte_rate": 1}, "Empty user not supported"),
        ({"user": "a"}, {"produced": 1}, "Invalid configuration key produced"),
        ({"user": "a"}, {"connection_creation_rate": 1}, "Invalid configuration key"),
        ({"user": "a"}, {"producer_byte_rate": 0.0}, "Quota producer_byte_rate must be greater"),
        ({"user": "a"}, {"producer_byte_rate": 1.5}, "cannot be a fractional value."),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1}, "Invalid configuration key"),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 2.0**40}, "too large for an INT."),
        ({"ip": "no/address"}, {"connection_creation_rate": 1}, "is not a valid IP"),
        ({"ip": "10.0.0.1", "user": "a"}, {"producer_byte_rate": 1}, "IP entity"),
    ],
)
def test_quota_that_cannot_be_is_refused(
    own_broker: BrokerUnderTest,
    entity: dict[str, str | None],
    values: dict[str, float],
    message: str,
) -> None:
    answer = alter(own_broker, entity, **values)
    assert answer.error_code == INVALID_REQUEST
    assert message in answer.error_message


@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([("group", ANY, None)], UNSUPPORTED_VERSION, "Unsupported entity type group"),
        ([("user", 3, None)], INVALID_REQUEST, "Unknown match type 3"),
        ([("user", EXACT, None)], INVALID_REQUEST, "but set match string to null"),
        ([("user", ANY, "a")], INVALID_REQUEST, "but also specified a match string"),
        ([("user", ANY, None)] * 2, INVALID_REQUEST, "cannot appear more than once"),
        ([("user", ANY, None), ("ip", ANY, None)], INVALID_REQUEST, "IP filter component"),
    ],
)
def test_filter_that_cannot_be_is_refused(
    own_broker: BrokerUnderTest,
    components: list[tuple[str, int, str | None]],
    code: int,
    message: str,
) -> None:
    answer = describe(own_broker, *components)
    assert answer.error_code == code
    assert message in answer.error_message
    assert answer.entries is None


def test_quotas_are_described_by_filters(own_broker: BrokerUnderTest) -> None:
    user, client_id = unique("user"), unique("client")
    limit(own_broker, {"user": user}, producer_byte_rate=10**9)
    limit(own_broker, {"user": user, "client-id": client_id}, request_percentage=2000.5)
    limit(own_broker, {"user": user, "client-id": None}, controller_mutation_rate=1000)

    def found(*components: tuple[str, int, str | None]) -> set[tuple[Any, ...]]:
        answer = describe(own_broker, *components)
        assert answer.error_code == 0
        return {
            (
                frozenset((part.entity_type, part.entity_name) for part in entry.entity),
                tuple((value.key, value.value) for value in entry.values),
            )
            for entry in answer.entries
        }

    of_user = (frozenset({("user", user)}), (("producer_byte_rate", 1e9),))
    of_both = (
        frozenset({("user", user), ("client-id", client_id)}),
        (("request_percentage", 2000.5),),
    )
    of_default = (
        frozenset({("user", user), ("client-id", None)}),
        (("controller_mutation_rate", 1000.0),),
    )
    exactly = ("user", EXACT, user)
    assert found(exactly) == {of_user}
    assert found(exactly, ("client-id", ANY, None)) == {of_both, of_default}
    assert found(exactly, ("client-id", BY_DEFAULT, None)) == {of_default}
    assert found(exactly, ("client-id", EXACT, client_id)) == {of_both}
    alter(own_broker, {"user": user}, producer_byte_rate=None)
    wait_until(lambda: found(exactly) == set())
    alter(own_broker, {"user": user, "client-id": client_id}, request_percentage=None)
    alter(own_broker, {"user": user, "client-id": None}, controller_mutation_rate=None)


def call_until_throttled(call: Callable[[], Any], bytes_each: int, bound: int) -> tuple[int, Any]:
    """Repeat a request until it is throttled: how many bytes were sent, and the answer."""
    started, total = time.monotonic(), 0
    while True:
        answer = call()
        total += bytes_each
        assert total <= bound * (WHOLE_SECONDS + 1 + time.monotonic() - started) + 2 * bytes_each
        if answer.throttle_time.total_seconds() > 0:
            return total, answer


def test_producer_is_throttled_at_its_quota_and_its_connection_is_not_read(
    own_broker: BrokerUnderTest,
) -> None:
    topic, client_id, bound, size = own_broker.create_topic(), unique("client"), 200_000, 100_000
    limit(own_broker, {"client-id": client_id}, producer_byte_rate=bound)
    fields = {
        "acks": 1,
        "timeout": 60_000,
        "topic_data": [
            {"name": topic, "partition_data": [{"index": 0, "records": batch([bytes(size)])}]}
        ],
    }
    with Wire(own_broker.bootstrap, client_id=client_id) as wire:
        total, answer = call_until_throttled(lambda: wire.call("produce", 9, **fields), size, bound)
        assert total >= bound * WHOLE_SECONDS
        assert answer.responses[0].partition_responses[0].error_code == 0
        throttled_at = time.monotonic()
        wire.call("api_versions", 3)
        waited = time.monotonic() - throttled_at
        assert waited >= answer.throttle_time.total_seconds() * 0.8
    with Wire(own_broker.bootstrap, client_id=unique("other")) as other:
        assert other.call("produce", 9, **fields).throttle_time.total_seconds() == 0


def test_fetch_beyond_the_quota_is_answered_empty(own_broker: BrokerUnderTest) -> None:
    topic, client_id, bound, size = own_broker.create_topic(), unique("client"), 200_000, 100_000
    with Wire(own_broker.bootstrap) as wire:
        data = {"name": topic, "partition_data": [{"index": 0, "records": batch([bytes(size)])}]}
        wire.call("produce", 9, acks=1, timeout=60_000, topic_data=[data])
    limit(own_broker, {"client-id": client_id}, consumer_byte_rate=bound)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
    fields = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 2**20,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
    }
    with Wire(own_broker.bootstrap, client_id=client_id) as wire:
        total, answer = call_until_throttled(lambda: wire.call("fetch", 11, **fields), size, bound)
        assert total >= bound * WHOLE_SECONDS
        assert (answer.error_code, answer.responses) == (0, ())


def test_partitions_beyond_the_quota_are_refused_for_a_while(own_broker: BrokerUnderTest) -> None:
    client_id = unique("client")
    limit(own_broker, {"client-id": client_id}, controller_mutation_rate=1)

    def create(wire: Wire, version: int, name: str, partitions: int) -> tuple[int, float]:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        answer = wire.call("create_topics", version, topics=[topic], timeout=60_000)
        return answer.topics[0].error_code, answer.throttle_time.total_seconds()

    with Wire(own_broker.bootstrap, client_id=client_id) as wire:
        assert create(wire, 7, unique("topic"), 8) == (0, 0.0)
        code, throttle = create(wire, 7, unique("topic"), 1)
        assert (code, throttle > 0) == (THROTTLING_QUOTA_EXCEEDED, True)
    with Wire(own_broker.bootstrap, client_id=client_id) as wire:  # the other one is muted
        code, throttle = create(wire, 5, unique("topic"), 20)
        assert (code, throttle > 0) == (0, True)


def test_connections_beyond_the_rate_are_closed(own_broker: BrokerUnderTest) -> None:
    limit(own_broker, {"ip": "127.0.0.1"}, connection_creation_rate=1)
    try:
        for _ in range(100):
            with Wire(own_broker.bootstrap) as wire:
                wire.start("api_versions", 3)
                if wire.is_closed():
                    break
        else:
            pytest.fail("a hundred connections were accepted")
    finally:
        removed = False
        while not removed:  # the address has to wait for its turn as well
            try:
                alter(own_broker, {"ip": "127.0.0.1"}, connection_creation_rate=None)
                removed = True
            except (ConnectionEnded, ConnectionError):
                time.sleep(0.1)


@pytest.mark.slow_with("aiokafka")
@pytest.mark.parametrize(
    "client",
    [
        *client_parameters("confluent", "aiokafka"),
        pytest.param("kafka-python", marks=pytest.mark.slow),
    ],
    indirect=True,
)
def test_real_clients_are_held_to_their_quota(own_broker: BrokerUnderTest, client: Any) -> None:
    topic, bound, size, count = own_broker.create_topic(), 200_000, 50_000, 18
    limit(own_broker, {"client-id": None}, producer_byte_rate=bound, consumer_byte_rate=bound)
    one_per_request = {"batch.size": size} if client is CLIENTS["confluent"] else {}
    try:
        records = [Record(value=bytes([number]) * size, partition=0) for number in range(count)]
        for work in (
            lambda: client.produce(own_broker.bootstrap, topic, records, config=one_per_request),
            lambda: client.consume(own_broker.bootstrap, topic, count),
        ):
            started = time.monotonic()
            outcome = work()
            elapsed = time.monotonic() - started
            # A window with its current sample at once; the last request is not waited for.
            assert elapsed >= (count - 1) * size / bound - WHOLE_SECONDS - 1
            assert len(outcome) == count
        assert [record.value[:1] for record in outcome] == [bytes([it]) for it in range(count)]
    finally:
        alter(own_broker, {"client-id": None}, producer_byte_rate=None, consumer_byte_rate=None)


@pytest.mark.java
@pytest.mark.slow
def test_config_command_sets_describes_and_removes_quotas(
    own_broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    user = unique("user")

    def configs(*arguments: str) -> str:
        server = ("--bootstrap-server", own_broker.bootstrap)
        return tools.check("kafka.admin.ConfigCommand", *server, *arguments).stdout

    for entity, quota, described in (
        (("--entity-type", "users", "--entity-name", user), "producer_byte_rate=1048576", user),
        (("--entity-type", "clients", "--entity-default"), "consumer_byte_rate=1.0E9", "default"),
        (
            ("--entity-type", "ips", "--entity-name", "10.1.2.3"),
            "connection_creation_rate=7",
            "10.1.2.3",
        ),
        (
            *[("--entity-type", "users", "--entity-name", user, "--entity-type", "clients")],
            "request_percentage=50",
            user,
        ),
    ):
        if entity[-1] == "clients":
            entity = (*entity, "--entity-name", "app")
        key, value = quota.split("=")
        configs(*entity, "--alter", "--add-config", f"{key}={float(value):.0f}")
        wait_until(lambda: key in configs(*entity, "--describe"))  # noqa: B023
        assert described in configs(*entity, "--describe")
        configs(*entity, "--alter", "--delete-config", key)
        wait_until(lambda: key not in configs(*entity, "--describe"))  # noqa: B023
