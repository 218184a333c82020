"""Fetch: how much, how long, up to where, and in which session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream import Broker
from millstream.broker.metadata.topics import NewTopic
from millstream.errors import ErrorCode, NotCached
from millstream.records.batch import iterate_headers
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.calls import append, create_topic, topic_id_of
from tests.broker.handlers.transaction_calls import new_producer
from tests.broker.serving import WireClient, serving
from tests.peers.servers import free_port
from tests.peers.wire import Wire, batch, produce_fields, request_frame

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18


@pytest.fixture
def wire(millstream: SharedBroker) -> Iterator[Wire]:
    with Wire(millstream.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def topic(wire: Wire, millstream: SharedBroker) -> str:
    name = millstream.unique_topic()
    create_topic(wire, name, 3)
    return name


def fields(topic: Any, offsets: dict[int, int], version: int = 11, **options: Any) -> Any:
    partition_max_bytes = options.pop("partition_max_bytes", 2**20)
    leader_epoch = options.pop("leader_epoch", -1)
    last_epoch = options.pop("last_fetched_epoch", -1)
    partitions = []
    for index, offset in offsets.items():
        partition = {
            "partition": index,
            "fetch_offset": offset,
            "partition_max_bytes": partition_max_bytes,
        }
        if version >= 9:
            partition["current_leader_epoch"] = leader_epoch
        if version >= 12:
            partition["last_fetched_epoch"] = last_epoch
        partitions.append(partition)
    key = "topic_id" if version >= 13 else "topic"
    request: dict[str, Any] = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 2**30,
        "topics": [{key: topic, "partitions": partitions}] if partitions else [],
    }
    if version >= 7:
        request["session_epoch"] = -1
    return request | options


def fetch(
    wire: Wire, topic: Any, offsets: dict[int, int], version: int = 11, **options: Any
) -> Any:
    return wire.call("fetch", version, **fields(topic, offsets, version, **options))


def partition_of(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


def offsets_in(records: bytes | None) -> list[int]:
    return [header.base_offset for _, header in iterate_headers(bytes(records or b""))]


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_returns_stored_batches_in_every_version(
    wire: Wire, topic: str, version: int
) -> None:
    append(wire, topic, b"a", b"b")
    append(wire, topic, b"c")
    key = topic_id_of(wire, topic) if version >= 13 else topic
    partition = partition_of(fetch(wire, key, {0: 0}, version))
    assert (partition.error_code, partition.high_watermark) == (0, 3)
    assert partition.last_stable_offset == 3
    assert offsets_in(partition.records) == [0, 2]


def test_fetch_in_the_middle_of_a_batch_returns_all_of_it(wire: Wire, topic: str) -> None:
    append(wire, topic, b"a", b"b", b"c")
    assert offsets_in(partition_of(fetch(wire, topic, {0: 1})).records) == [0]


def test_first_batch_is_whole_whatever_the_limits(wire: Wire, topic: str) -> None:
    for index in (0, 1):
        append(wire, topic, b"x" * 5000, partition=index)
        append(wire, topic, b"y", partition=index)
    answer = fetch(wire, topic, {0: 0, 1: 0}, max_bytes=100, partition_max_bytes=100)
    first, second = answer.responses[0].partitions
    assert offsets_in(first.records) == [0]
    assert not second.records
    answer = fetch(wire, topic, {0: 0, 1: 0}, partition_max_bytes=100)
    first, second = answer.responses[0].partitions
    assert offsets_in(first.records) == offsets_in(second.records) == [0]


@pytest.mark.parametrize("offset", [-1, 4])
def test_offset_outside_the_log_is_refused(wire: Wire, topic: str, offset: int) -> None:
    append(wire, topic, b"a", b"b", b"c")
    partition = partition_of(fetch(wire, topic, {0: offset}))
    assert partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.high_watermark == -1


@pytest.mark.parametrize(("epoch", "code"), [(-1, 0), (0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_leader_epoch_is_checked(wire: Wire, topic: str, epoch: int, code: int) -> None:
    assert partition_of(fetch(wire, topic, {0: 0}, leader_epoch=epoch)).error_code == code


def test_epoch_that_never_was_is_refused(wire: Wire, topic: str) -> None:
    append(wire, topic, b"a")
    answer = partition_of(fetch(wire, topic, {0: 1}, 12, last_fetched_epoch=7))
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_client_that_read_past_the_end_of_an_epoch_is_told_where_it_ended(tmp_path: Path) -> None:
    with Broker.start(tmp_path, port=free_port(), in_process=False) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            create_topic(wire, "t")
            append(wire, "t", b"a")
        broker.kill()
        broker.restart()
        with Wire(broker.bootstrap_servers) as wire:
            append(wire, "t", b"b")
            answer = partition_of(fetch(wire, "t", {0: 2}, 12, last_fetched_epoch=0))
            diverging = answer.diverging_epoch
            assert (diverging.epoch, diverging.end_offset) == (0, 1)
            assert not answer.records


def test_unknown_partition_and_topic_are_refused(
    wire: Wire, topic: str, millstream: SharedBroker
) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert partition_of(fetch(wire, topic, {9: 0})).error_code == unknown
    assert partition_of(fetch(wire, millstream.unique_topic(), {0: 0})).error_code == unknown


def test_read_committed_answers_an_empty_list_of_aborted_transactions(
    wire: Wire, topic: str
) -> None:
    append(wire, topic, b"a")
    committed = partition_of(fetch(wire, topic, {0: 0}, isolation_level=1))
    assert committed.aborted_transactions == ()
    assert offsets_in(committed.records) == [0]
    assert partition_of(fetch(wire, topic, {0: 0})).aborted_transactions is None


def test_fetch_waits_for_records_and_is_woken_by_them(
    wire: Wire, topic: str, millstream: SharedBroker
) -> None:
    with Wire(millstream.bootstrap_servers) as consumer:
        for offset in range(3):
            consumer.send(_frame(topic, {0: offset, 1: 0}, max_wait=60_000))
            append(wire, topic, b"x")
            answer = consumer.receive("fetch", 11)
            by_index = {it.partition_index: it for it in answer.responses[0].partitions}
            assert offsets_in(by_index[0].records) == [offset]
            assert not by_index[1].records


def test_committed_reader_is_woken_by_the_marker_and_told_what_was_aborted(
    wire: Wire, topic: str, millstream: SharedBroker
) -> None:
    with new_producer(millstream, protocol=2) as producer:
        for committed, offset in ((True, 0), (False, 3)):
            wire.send(_frame(topic, {0: offset}, max_wait=60_000, isolation_level=1))
            producer.produce(topic, [b"a", b"b"])
            open_ = partition_of(fetch(producer.wire, topic, {0: offset}, isolation_level=1))
            assert (open_.last_stable_offset, open_.high_watermark) == (offset, offset + 2)
            assert not open_.records
            identity = producer.identity
            producer.end(committed)
            found = partition_of(wire.receive("fetch", 11))
            assert offsets_in(found.records) == [offset, offset + 2]  # of batches
            assert found.last_stable_offset == found.high_watermark == offset + 3
            aborted = [(it.producer_id, it.first_offset) for it in found.aborted_transactions]
            assert aborted == ([] if committed else [(identity[0], offset)])


def test_committed_reader_counts_only_what_is_committed_towards_min_bytes(
    wire: Wire, topic: str, millstream: SharedBroker
) -> None:
    with new_producer(millstream, protocol=2) as producer:
        wire.send(_frame(topic, {0: 0}, max_wait=60_000, min_bytes=1000, isolation_level=1))
        producer.produce(topic, [b"x" * 2000])
        append(producer.wire, topic, b"y" * 2000)
        producer.end(committed=True)
        found = partition_of(wire.receive("fetch", 11))
        assert offsets_in(found.records) == [0, 1, 2]


def test_session_tells_of_the_last_stable_offset_when_it_moves(
    wire: Wire, topic: str, millstream: SharedBroker
) -> None:
    with new_producer(millstream, protocol=2) as producer:
        producer.produce(topic, [b"a"])
        first = fetch(wire, topic, {0: 0}, isolation_level=1, session_epoch=0)
        session = {"session_id": first.session_id, "isolation_level": 1}
        assert not fetch(wire, topic, {}, session_epoch=1, **session).responses
        append(producer.wire, topic, b"b")
        found = partition_of(fetch(wire, topic, {}, session_epoch=2, **session))
        assert (found.last_stable_offset, found.high_watermark) == (0, 2)
        producer.end(committed=True)
        epoch = 3
        while not (answer := fetch(wire, topic, {}, session_epoch=epoch, **session)).responses:
            epoch += 1
        assert offsets_in(partition_of(answer).records) == [0, 1, 2]


def test_fetch_waits_until_there_are_min_bytes(
    wire: Wire, topic: str, millstream: SharedBroker
) -> None:
    with Wire(millstream.bootstrap_servers) as consumer:
        consumer.send(_frame(topic, {0: 0, 1: 0}, max_wait=60_000, min_bytes=2500))
        for index in (0, 1, 0):
            append(wire, topic, b"x" * 800, partition=index)
        answer = consumer.receive("fetch", 11)
        sizes = [len(it.records) for it in answer.responses[0].partitions]
        assert sum(sizes) >= 2500


def test_fetch_answers_what_there_is_when_its_time_is_over(wire: Wire, topic: str) -> None:
    append(wire, topic, b"x")
    started = time.monotonic()
    answer = fetch(wire, topic, {0: 0, 1: 0}, max_wait=50, min_bytes=10_000)
    assert time.monotonic() - started >= 0.049  # the loop's clock counts whole milliseconds
    assert offsets_in(partition_of(answer).records) == [0]
    assert len(answer.responses[0].partitions) == 2


def _frame(topic: str, offsets: dict[int, int], **options: Any) -> bytes:
    return request_frame("fetch", 11, **fields(topic, offsets, **options))


def test_session_answers_only_what_is_new(wire: Wire, topic: str) -> None:
    append(wire, topic, b"a", partition=1)
    first = fetch(wire, topic, {0: 0, 1: 0, 2: 0}, session_epoch=0)
    assert first.session_id != 0
    assert len(first.responses[0].partitions) == 3

    def next_fetch(epoch: int, offsets: dict[int, int]) -> dict[int, list[int]]:
        answer = fetch(
            wire, topic, offsets, session_id=first.session_id, session_epoch=epoch, max_wait=20
        )
        assert answer.error_code == 0
        return {
            it.partition_index: offsets_in(it.records)
            for each in answer.responses
            for it in each.partitions
        }

    assert next_fetch(1, {}) == {1: [0]}
    assert next_fetch(2, {1: 1}) == {}
    append(wire, topic, b"b", partition=2)
    assert next_fetch(3, {}) == {2: [0]}
    append(wire, topic, b"c", partition=0)
    assert next_fetch(4, {2: 1}) == {0: [0]}


def test_session_out_of_step_is_refused(wire: Wire, topic: str) -> None:
    session = fetch(wire, topic, {0: 0}, session_epoch=0).session_id
    wrong_epoch = fetch(wire, topic, {}, session_id=session, session_epoch=5)
    assert wrong_epoch.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = fetch(wire, topic, {}, session_id=session + 1, session_epoch=1)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_session_tells_that_a_topic_was_deleted(wire: Wire, millstream: SharedBroker) -> None:
    doomed = millstream.unique_topic()
    create_topic(wire, doomed)
    session = fetch(wire, doomed, {0: 0}, session_epoch=0).session_id
    with Wire(millstream.bootstrap_servers) as consumer:
        request = fields(doomed, {}, session_id=session, session_epoch=1, max_wait=60_000)
        consumer.send(request_frame("fetch", 11, **request))
        wire.call("delete_topics", 5, topic_names=(doomed,), timeout=1000)
        answer = consumer.receive("fetch", 11)
    assert partition_of(answer).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("is_cold", [True, False])
def test_read_that_fails_by_a_defect_leaves_no_watcher(
    is_cold: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await server.topics.create([NewTopic("t", 1)])
            await client.call(PRODUCE, 3, **produce_fields("t", batch([b"x"])))
            partition = server.partitions.find("t", 0)

            def read(offset: int, *, max_bytes: int, may_block: bool) -> bytes:
                raise RuntimeError("a defect")

            def read_to_send(offset: int, *, max_bytes: int, committed: bool) -> bytes:
                if is_cold:
                    raise NotCached("not in memory")
                raise RuntimeError("a defect")

            monkeypatch.setattr(partition, "read", read)
            monkeypatch.setattr(partition, "read_to_send", read_to_send)
            with pytest.raises(asyncio.IncompleteReadError):
                await client.call(FETCH, 11, **fields("t", {0: 0}))
            assert not partition._watchers

    asyncio.run(scenario())
