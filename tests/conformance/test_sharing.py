"""Fan-out and load balancing together (A6), and replay beside a running consumer (B7)."""

from __future__ import annotations

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.conftest import prepared
from tests.conformance.test_produce import read_all
from tests.peers.programs import Record


def numbered(count: int, partitions: int, start: int = 0) -> list[Record]:
    return [
        Record(value=str(number).encode(), partition=number % partitions)
        for number in range(start, start + count)
    ]


def test_each_group_gets_every_record_and_each_member_a_share(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(partitions=4)
    client = prepared("confluent")
    billing, audit = unique("billing"), unique("audit")
    members = [client.join(broker.bootstrap, topic, group) for group in (billing, billing, audit)]
    first, second, alone = members
    try:
        alone.wait_until(lambda member: len(member.partitions) == 4)
        first.wait_until(lambda member: len(member.partitions) == 2)
        second.wait_until(lambda member: len(member.partitions) == 2)
        client.produce(broker.bootstrap, topic, numbered(200, 4))
        alone.wait_until(lambda member: len(member.records) == 200)
        first.wait_until(lambda member: len(member.records) == 100)
        second.wait_until(lambda member: len(member.records) == 100)
    finally:
        for member in members:
            member.kill()
    shared = {record.value for record in first.records} | {r.value for r in second.records}
    everything = {record.value for record in numbered(200, 4)}
    assert shared == everything == {record.value for record in alone.records}


def test_a_replay_from_the_beginning_disturbs_no_running_group(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    client = prepared("confluent")
    client.produce(broker.bootstrap, topic, numbered(300, 1))
    live = client.join(broker.bootstrap, topic, unique("live"))
    try:
        live.wait_until(lambda member: len(member.records) == 300)
        replayed = read_all(broker, topic, 300)
        client.produce(broker.bootstrap, topic, numbered(50, 1, start=300))
        live.wait_until(lambda member: len(member.records) == 350)
    finally:
        live.kill()
    assert [message.value() for message in replayed] == [r.value for r in live.records[:300]]
    assert [record.offset for record in live.records] == list(range(350))
