"""Our Fetch codec against kio's, in every version."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol import fetch
from tests.drawing import draws
from tests.protocol.kio_messages import kio_request, kio_response

VERSIONS = range(4, 19)
INT32 = st.integers(-1, 2**31 - 1)
INT64 = st.integers(-1, 2**63 - 1)
NAMES = st.text("abc-._", min_size=1, max_size=20)

partitions = st.fixed_dictionaries(
    {
        "partition": st.integers(0, 1000),
        "current_leader_epoch": INT32,
        "fetch_offset": INT64,
        "last_fetched_epoch": INT32,
        "log_start_offset": INT64,
        "partition_max_bytes": st.integers(0, 2**31 - 1),
    }
)
requests = st.fixed_dictionaries(
    {
        "replica_id": INT32,
        "replica_state": st.fixed_dictionaries({"replica_id": INT32}),
        "max_wait": st.integers(0, 60_000),
        "min_bytes": INT32,
        "max_bytes": INT32,
        "isolation_level": st.integers(0, 1),
        "session_id": INT32,
        "session_epoch": INT32,
        "topics": st.lists(
            st.fixed_dictionaries(
                {
                    "topic": NAMES,
                    "topic_id": st.uuids(),
                    "partitions": st.lists(partitions, max_size=3),
                }
            ),
            max_size=3,
        ),
        "forgotten_topics_data": st.lists(
            st.fixed_dictionaries(
                {
                    "topic": NAMES,
                    "topic_id": st.uuids(),
                    "partitions": st.lists(st.integers(0, 100), max_size=3),
                }
            ),
            max_size=2,
        ),
        "rack_id": st.text(max_size=5),
        "cluster_id": st.one_of(st.none(), st.text(max_size=5)),
    }
)
results = st.builds(
    fetch.FetchedPartition,
    partition=st.integers(0, 1000),
    error=st.sampled_from(ErrorCode),
    high_watermark=INT64,
    last_stable_offset=INT64,
    log_start_offset=INT64,
    records=st.binary(max_size=300),
    aborted=st.one_of(st.none(), st.lists(st.tuples(INT64, INT64), max_size=2)),
    diverging_epoch=st.one_of(st.none(), st.tuples(st.integers(0, 9), st.integers(0, 99))),
    current_leader=st.one_of(st.none(), st.tuples(st.integers(0, 9), st.integers(0, 99))),
    preferred_replica=st.integers(-1, 9),
)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=draws(20))
@given(fields=requests)
def test_request_is_read_as_kio_writes_it(version: int, fields: dict[str, Any]) -> None:
    request = fetch.decode_fetch_request(kio_request("fetch", version, fields), version)
    replica = fields if version < 15 else fields["replica_state"]
    assert request.replica_id == replica["replica_id"]
    assert request.max_wait_ms == fields["max_wait"]
    for name in ("min_bytes", "max_bytes", "isolation_level"):
        assert getattr(request, name) == fields[name]
    if version >= 7:
        assert request.session_id == fields["session_id"]
        assert request.session_epoch == fields["session_epoch"]
    key = "topic_id" if version >= 13 else "topic"
    assert request.topics == [
        (topic[key], [_wanted(it, version) for it in topic["partitions"]])
        for topic in fields["topics"]
    ]
    if version >= 7:
        assert request.forgotten == [
            (topic[key], topic["partitions"]) for topic in fields["forgotten_topics_data"]
        ]


@pytest.mark.parametrize("version", range(15, 19))
@settings(max_examples=draws(20))
@given(fields=requests, topic_id=st.uuids(), partition=partitions)
def test_request_for_one_partition_is_decoded_as_any_other(
    version: int, fields: dict[str, Any], topic_id: Any, partition: dict[str, Any]
) -> None:
    fields = fields | {
        "replica_state": {"replica_id": -1},
        "topics": [{"topic_id": topic_id, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
        "cluster_id": None,
    }
    body = kio_request("fetch", version, fields)
    request = fetch._decode_one_partition(body)
    assert request is not None
    assert request == fetch._decode(body, version) == fetch.decode_fetch_request(body, version)


@given(topic_id=st.uuids(), partition=partitions, other=INT64, epoch=INT32)
def test_repeated_request_differs_in_its_offset_only(
    topic_id: Any, partition: dict[str, Any], other: int, epoch: int
) -> None:
    def split(**changes: int) -> Any:
        partitions = [partition | {"last_fetched_epoch": -1} | changes]
        topics = [{"topic_id": topic_id, "partitions": partitions}]
        body = kio_request("fetch", 16, {"topics": topics, "forgotten_topics_data": []})
        return fetch.split_repeated_request(body, 16)

    fixed, offset = split()
    assert offset == partition["fetch_offset"]
    assert split(fetch_offset=other, log_start_offset=other) == (fixed, other)
    for field in ("partition", "current_leader_epoch", "partition_max_bytes"):
        assert split(**{field: partition[field] ^ 1})[0] != fixed
    assert (split(last_fetched_epoch=epoch) is None) == (epoch != -1)


@pytest.mark.parametrize("committed", [True, False])
@given(
    topic_id=st.uuids(),
    index=INT32,
    offsets=st.tuples(INT64, INT64, INT64),
    size=st.integers(0, 300),
)
def test_repeated_response_is_encoded_as_any_other(
    committed: bool, topic_id: Any, index: int, offsets: tuple[int, int, int], size: int
) -> None:
    records = b"r" * size
    response = fetch.RepeatedResponse(topic_id, index, committed=committed)
    whole = fetch.FetchedPartition(
        index, ErrorCode.NONE, *offsets, records, [] if committed else None
    )
    expected = fetch.encode_fetch_response(16, [(topic_id, [whole])])
    assert b"".join(response.encode(*offsets, records)) == b"".join(expected)


def _wanted(fields: dict[str, Any], version: int) -> fetch.FetchPartition:
    return fetch.FetchPartition(
        fields["partition"],
        fields["current_leader_epoch"] if version >= 9 else -1,
        fields["fetch_offset"],
        fields["last_fetched_epoch"] if version >= 12 else -1,
        fields["partition_max_bytes"],
    )


@pytest.mark.parametrize("version", range(13, 19))
@settings(max_examples=draws(20))
@given(topic_id=st.uuids(), result=results, error=st.sampled_from(ErrorCode), session_id=INT32)
def test_response_with_one_partition_is_read_by_kio_as_it_was_meant(
    version: int, topic_id: Any, result: fetch.FetchedPartition, error: ErrorCode, session_id: int
) -> None:
    topics = [(topic_id, [result])]
    buffers = fetch.encode_fetch_response(version, topics, error=error, session_id=session_id)
    response = kio_response("fetch", version, b"".join(buffers))
    assert (response.error_code, response.session_id) == (error, session_id)
    (topic,) = response.responses
    (partition,) = topic.partitions
    assert topic.topic_id == topic_id
    _assert_same(version, result, partition)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=draws(20))
@given(
    topics=st.lists(st.tuples(NAMES, st.uuids(), st.lists(results, max_size=3)), max_size=3),
    error=st.sampled_from(ErrorCode),
    session_id=INT32,
)
def test_response_is_read_by_kio_as_it_was_meant(
    version: int, topics: list[Any], error: ErrorCode, session_id: int
) -> None:
    keyed = [(topic_id if version >= 13 else name, it) for name, topic_id, it in topics]
    buffers = fetch.encode_fetch_response(version, keyed, error=error, session_id=session_id)
    response = kio_response("fetch", version, b"".join(buffers))
    if version >= 7:
        assert (response.error_code, response.session_id) == (error, session_id)
    for (key, sent), topic in zip(keyed, response.responses, strict=True):
        assert key == (topic.topic_id if version >= 13 else topic.topic)
        for meant, read in zip(sent, topic.partitions, strict=True):
            _assert_same(version, meant, read)


def _assert_same(version: int, meant: fetch.FetchedPartition, read: Any) -> None:
    assert (read.partition_index, read.error_code) == (meant.partition, meant.error)
    assert read.high_watermark == meant.high_watermark
    assert read.last_stable_offset == meant.last_stable_offset
    assert bytes(read.records or b"") == meant.records
    if version >= 5:
        assert read.log_start_offset == meant.log_start_offset
    if version >= 11:
        assert read.preferred_read_replica == meant.preferred_replica
    aborted = read.aborted_transactions
    if meant.aborted is None:
        assert aborted is None
    else:
        assert [(it.producer_id, it.first_offset) for it in aborted] == meant.aborted
    if version >= 12:
        diverging, leader = read.diverging_epoch, read.current_leader
        assert (diverging.epoch, diverging.end_offset) == (meant.diverging_epoch or (-1, -1))
        assert (leader.leader_id, leader.leader_epoch) == (meant.current_leader or (-1, -1))


@pytest.mark.parametrize(("version", "key"), [(12, "topic"), (16, UUID(int=1))])
def test_records_are_sent_as_they_are_given_without_a_copy(version: int, key: Any) -> None:
    records = memoryview(b"x" * 1000)
    answer = fetch.FetchedPartition(0, records=records)
    buffers = fetch.encode_fetch_response(version, [(key, [answer])])
    assert any(buffer is records for buffer in buffers)


@given(version=st.sampled_from(VERSIONS), fields=requests, cut=st.integers(1, 50))
def test_request_that_ends_too_early_is_refused(
    version: int, fields: dict[str, Any], cut: int
) -> None:
    body = kio_request("fetch", version, fields)
    with pytest.raises(ProtocolError):
        fetch.decode_fetch_request(body[: max(len(body) - cut, 0)], version)


@given(version=st.sampled_from(VERSIONS), body=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(version: int, body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        fetch.decode_fetch_request(body, version)
