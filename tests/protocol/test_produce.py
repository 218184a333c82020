"""Our Produce codec against kio's, in every version."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol import produce
from millstream.protocol.wire import write_nullable_string
from tests.drawing import draws
from tests.protocol.kio_messages import kio_request, kio_response

VERSIONS = range(3, 14)
INT64 = st.integers(-1, 2**63 - 1)
NAMES = st.text("abc-._", min_size=1, max_size=20)

requests = st.fixed_dictionaries(
    {
        "transactional_id": st.one_of(st.none(), st.text(max_size=10)),
        "acks": st.sampled_from([-1, 0, 1]),
        "timeout": st.integers(0, 60_000),
        "topic_data": st.lists(
            st.fixed_dictionaries(
                {
                    "name": NAMES,
                    "topic_id": st.uuids(),
                    "partition_data": st.lists(
                        st.fixed_dictionaries(
                            {
                                "index": st.integers(0, 1000),
                                "records": st.one_of(st.none(), st.binary(max_size=300)),
                            }
                        ),
                        max_size=3,
                    ),
                }
            ),
            max_size=3,
        ),
    }
)

results = st.builds(
    produce.ProducedPartition,
    partition=st.integers(0, 1000),
    error=st.sampled_from(ErrorCode),
    base_offset=INT64,
    log_append_time_ms=st.integers(-1, 10**13),
    log_start_offset=INT64,
    message=st.one_of(st.none(), st.text(max_size=20)),
    current_leader=st.one_of(st.none(), st.tuples(st.integers(0, 9), st.integers(0, 99))),
    record_errors=st.lists(st.tuples(st.integers(0, 9), st.text(max_size=9)), max_size=2),
)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=draws(20))
@given(fields=requests)
def test_request_is_read_as_kio_writes_it(version: int, fields: dict[str, Any]) -> None:
    request = produce.decode_produce_request(kio_request("produce", version, fields), version)
    assert request.transactional_id == fields["transactional_id"]
    assert (request.acks, request.timeout_ms) == (fields["acks"], fields["timeout"])
    key = "topic_id" if version >= 13 else "name"
    assert [(topic.key, topic.partitions) for topic in request.topics] == [
        (topic[key], [(it["index"], it["records"]) for it in topic["partition_data"]])
        for topic in fields["topic_data"]
    ]


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=draws(20))
@given(topics=st.lists(st.tuples(NAMES, st.uuids(), st.lists(results, max_size=3)), max_size=3))
def test_response_is_read_by_kio_as_it_was_meant(
    version: int, topics: list[tuple[str, UUID, list[produce.ProducedPartition]]]
) -> None:
    encoded = [
        (topic_id.bytes if version >= 13 else write_nullable_string(name, compact=version >= 9), it)
        for name, topic_id, it in topics
    ]
    response = kio_response("produce", version, produce.encode_produce_response(version, encoded))
    for (name, topic_id, partitions), answer in zip(topics, response.responses, strict=True):
        assert (answer.topic_id == topic_id) if version >= 13 else (answer.name == name)
        for partition, read in zip(partitions, answer.partition_responses, strict=True):
            assert (read.index, read.error_code) == (partition.partition, partition.error)
            assert read.base_offset == partition.base_offset
            if version >= 5:
                assert read.log_start_offset == partition.log_start_offset
            if version >= 8 and partition.error:
                assert read.error_message == partition.message
                errors = [
                    (it.batch_index, it.batch_index_error_message) for it in read.record_errors
                ]
                assert errors == partition.record_errors
            if version >= 10 and partition.error and partition.current_leader:
                leader = read.current_leader
                assert (leader.leader_id, leader.leader_epoch) == partition.current_leader


@given(version=st.sampled_from(VERSIONS), fields=requests, cut=st.integers(1, 50))
def test_request_that_ends_too_early_is_refused(
    version: int, fields: dict[str, Any], cut: int
) -> None:
    body = kio_request("produce", version, fields)
    with pytest.raises(ProtocolError):
        produce.decode_produce_request(body[: max(len(body) - cut, 0)], version)


def test_bytes_after_the_end_of_a_request_are_ignored_as_kafka_does() -> None:
    body = kio_request("produce", 9, {"acks": 1})
    assert produce.decode_produce_request(body + b"\0", 9).acks == 1


@given(version=st.sampled_from(VERSIONS), body=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(version: int, body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        produce.decode_produce_request(body, version)
