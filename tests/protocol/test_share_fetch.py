"""Our ShareFetch codec against kio's."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol import share_fetch
from tests.drawing import draws
from tests.protocol.kio_messages import kio_request, kio_response

VERSIONS = (1, 2)
INT32 = st.integers(-1, 2**31 - 1)
OFFSET = st.integers(0, 2**63 - 1)

acknowledgements = st.lists(
    st.fixed_dictionaries(
        {
            "first_offset": OFFSET,
            "last_offset": OFFSET,
            "acknowledge_types": st.lists(st.integers(0, 4), max_size=300).map(tuple),
        }
    ),
    max_size=3,
).map(tuple)
topics = st.lists(
    st.fixed_dictionaries(
        {
            "topic_id": st.uuids(),
            "partitions": st.lists(
                st.fixed_dictionaries(
                    {"partition_index": INT32, "acknowledgement_batches": acknowledgements}
                ),
                max_size=3,
            ).map(tuple),
        }
    ),
    max_size=3,
).map(tuple)
requests = st.fixed_dictionaries(
    {
        "group_id": st.none() | st.text(max_size=20),
        "member_id": st.none() | st.text(max_size=40),
        "share_session_epoch": INT32,
        "max_wait": st.integers(0, 60_000),
        "min_bytes": INT32,
        "max_bytes": INT32,
        "max_records": INT32,
        "batch_size": INT32,
        "share_acquire_mode": st.integers(0, 1),
        "is_renew_ack": st.booleans(),
        "topics": topics,
        "forgotten_topics_data": st.lists(
            st.fixed_dictionaries(
                {"topic_id": st.uuids(), "partitions": st.lists(INT32, max_size=3).map(tuple)}
            ),
            max_size=3,
        ).map(tuple),
    }
)


@pytest.mark.parametrize("version", VERSIONS)
@given(fields=requests)
@settings(max_examples=draws(60), deadline=None)
def test_share_fetch_request_is_read_like_kio(version: int, fields: dict[str, Any]) -> None:
    request = share_fetch.decode_share_fetch_request(
        kio_request("share_fetch", version, fields), version
    )
    assert request.group_id == fields["group_id"]
    assert request.member_id == fields["member_id"]
    assert request[2:8] == tuple(
        fields[name]
        for name in (
            "share_session_epoch",
            "max_wait",
            "min_bytes",
            "max_bytes",
            "max_records",
            "batch_size",
        )
    )
    new = (fields["share_acquire_mode"], fields["is_renew_ack"])
    assert request[8:10] == (new if version > 1 else (0, False))
    assert request.topics == [
        (
            topic["topic_id"],
            [
                (
                    partition["partition_index"],
                    [
                        (it["first_offset"], it["last_offset"], bytes(it["acknowledge_types"]))
                        for it in partition["acknowledgement_batches"]
                    ],
                )
                for partition in topic["partitions"]
            ],
        )
        for topic in fields["topics"]
    ]
    assert request.forgotten == [
        (topic["topic_id"], list(topic["partitions"])) for topic in fields["forgotten_topics_data"]
    ]


@pytest.mark.parametrize("version", VERSIONS)
@given(fields=requests, cut=st.integers(0, 200), noise=st.binary(max_size=5))
@settings(max_examples=draws(60), deadline=None)
def test_share_fetch_request_that_is_none_is_refused(
    version: int, fields: dict[str, Any], cut: int, noise: bytes
) -> None:
    body = kio_request("share_fetch", version, fields)
    with contextlib.suppress(ProtocolError):  # any other exception fails the test
        share_fetch.decode_share_fetch_request(body[: max(len(body) - cut, 0)] + noise, version)


partitions = st.builds(
    share_fetch.SharedPartition,
    partition=st.integers(0, 1000),
    error=st.sampled_from([ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]),
    error_message=st.none() | st.text(max_size=10),
    acknowledge_error=st.sampled_from([ErrorCode.NONE, ErrorCode.INVALID_RECORD_STATE]),
    acknowledge_message=st.none() | st.text(max_size=10),
    leader=st.tuples(INT32, INT32),
    records=st.binary(max_size=300),
    acquired=st.lists(st.tuples(OFFSET, OFFSET, st.integers(1, 100)), max_size=3),
)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    answers=st.lists(st.tuples(st.uuids(), st.lists(partitions, max_size=3)), max_size=3),
    lock_duration_ms=st.integers(0, 3_600_000),
)
@settings(max_examples=draws(60), deadline=None)
def test_share_fetch_response_is_read_by_kio(
    version: int,
    answers: list[tuple[Any, list[share_fetch.SharedPartition]]],
    lock_duration_ms: int,
) -> None:
    body = b"".join(
        share_fetch.encode_share_fetch_response(answers, lock_duration_ms=lock_duration_ms)
    )
    response = kio_response("share_fetch", version, body)
    assert response.error_code == ErrorCode.NONE
    assert response.acquisition_lock_timeout == timedelta(milliseconds=lock_duration_ms)
    assert len(response.responses) == len(answers)
    for topic, (topic_id, expected) in zip(response.responses, answers, strict=True):
        assert topic.topic_id == topic_id or topic_id.int == 0
        for got, wanted in zip(topic.partitions, expected, strict=True):
            assert got.partition_index == wanted.partition
            assert got.error_code == wanted.error
            assert got.error_message == wanted.error_message
            assert got.acknowledge_error_code == wanted.acknowledge_error
            assert got.acknowledge_error_message == wanted.acknowledge_message
            leader = (got.current_leader.leader_id, got.current_leader.leader_epoch)
            assert leader == wanted.leader
            assert (got.records or b"") == wanted.records
            assert [
                (it.first_offset, it.last_offset, it.delivery_count) for it in got.acquired_records
            ] == list(wanted.acquired)


def test_share_fetch_error_is_read_by_kio() -> None:
    body = share_fetch.encode_share_fetch_response(
        (), error=ErrorCode.SHARE_SESSION_NOT_FOUND, error_message="gone"
    )
    response = kio_response("share_fetch", 2, b"".join(body))
    assert response.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert response.error_message == "gone"
