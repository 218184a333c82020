"""Our ShareAcknowledge codec against kio's."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol import share_acknowledge
from tests.drawing import draws
from tests.protocol.kio_messages import kio_request, kio_response
from tests.protocol.test_share_fetch import INT32, VERSIONS, topics

requests = st.fixed_dictionaries(
    {
        "group_id": st.none() | st.text(max_size=20),
        "member_id": st.none() | st.text(max_size=40),
        "share_session_epoch": INT32,
        "is_renew_ack": st.booleans(),
        "topics": topics,
    }
)


@pytest.mark.parametrize("version", VERSIONS)
@given(fields=requests)
@settings(max_examples=draws(60), deadline=None)
def test_share_acknowledge_request_is_read_like_kio(version: int, fields: dict[str, Any]) -> None:
    request = share_acknowledge.decode_share_acknowledge_request(
        kio_request("share_acknowledge", version, fields), version
    )
    assert request[:3] == (
        fields["group_id"],
        fields["member_id"],
        fields["share_session_epoch"],
    )
    assert request.is_renew_ack == (fields["is_renew_ack"] and version > 1)
    assert [topic_id for topic_id, _ in request.topics] == [
        topic["topic_id"] for topic in fields["topics"]
    ]


@pytest.mark.parametrize("version", VERSIONS)
@given(fields=requests, cut=st.integers(0, 200), noise=st.binary(max_size=5))
@settings(max_examples=draws(60), deadline=None)
def test_share_acknowledge_request_that_is_none_is_refused(
    version: int, fields: dict[str, Any], cut: int, noise: bytes
) -> None:
    body = kio_request("share_acknowledge", version, fields)
    body = body[: max(len(body) - cut, 0)] + noise
    with contextlib.suppress(ProtocolError):  # any other exception fails the test
        share_acknowledge.decode_share_acknowledge_request(body, version)


partitions = st.builds(
    share_acknowledge.AcknowledgedPartition,
    partition=st.integers(0, 1000),
    error=st.sampled_from([ErrorCode.NONE, ErrorCode.INVALID_RECORD_STATE]),
    error_message=st.none() | st.text(max_size=10),
    leader=st.tuples(INT32, INT32),
)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    answers=st.lists(st.tuples(st.uuids(), st.lists(partitions, max_size=3)), max_size=3),
    lock_duration_ms=st.integers(0, 3_600_000),
)
@settings(max_examples=draws(60), deadline=None)
def test_share_acknowledge_response_is_read_by_kio(
    version: int,
    answers: list[tuple[Any, list[share_acknowledge.AcknowledgedPartition]]],
    lock_duration_ms: int,
) -> None:
    body = share_acknowledge.encode_share_acknowledge_response(
        version, answers, lock_duration_ms=lock_duration_ms
    )
    response = kio_response("share_acknowledge", version, body)
    if version > 1:
        assert response.acquisition_lock_timeout == timedelta(milliseconds=lock_duration_ms)
    for topic, (_, expected) in zip(response.responses, answers, strict=True):
        assert [
            (
                it.partition_index,
                it.error_code,
                it.error_message,
                (it.current_leader.leader_id, it.current_leader.leader_epoch),
            )
            for it in topic.partitions
        ] == [tuple(it) for it in expected]


def test_share_acknowledge_error_is_read_by_kio() -> None:
    body = share_acknowledge.encode_share_acknowledge_response(
        2, (), error=ErrorCode.INVALID_REQUEST, error_message="no"
    )
    response = kio_response("share_acknowledge", 2, body)
    assert (response.error_code, response.error_message) == (ErrorCode.INVALID_REQUEST, "no")
