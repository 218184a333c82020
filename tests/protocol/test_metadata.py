"""Our Metadata codec against kio's, in every version."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol import metadata
from tests.drawing import draws
from tests.protocol.kio_messages import kio_request, kio_response

VERSIONS = range(14)
INT32 = st.integers(-1, 2**31 - 1)
IDS = st.lists(st.integers(0, 9), max_size=3)
NAMES = st.text("abc-._", min_size=1, max_size=20)
NONZERO_IDS = st.uuids().filter(lambda it: it.int != 0)

requests = st.fixed_dictionaries(
    {
        "topics": st.one_of(
            st.none(),
            st.lists(st.fixed_dictionaries({"name": NAMES, "topic_id": NONZERO_IDS}), max_size=3),
        ),
        "allow_auto_topic_creation": st.booleans(),
        "include_cluster_authorized_operations": st.booleans(),
        "include_topic_authorized_operations": st.booleans(),
    }
)
partitions = st.builds(
    metadata.PartitionEntry,
    partition=st.integers(0, 1000),
    leader_id=INT32,
    leader_epoch=INT32,
    replicas=IDS,
    in_sync=IDS,
    offline=IDS,
    error=st.sampled_from(ErrorCode),
)
responses = st.builds(
    metadata.MetadataResponse,
    brokers=st.lists(
        st.builds(
            metadata.BrokerEntry,
            INT32,
            st.text(max_size=9),
            st.integers(0, 65535),
            st.one_of(st.none(), st.text(max_size=9)),
        ),
        max_size=3,
    ),
    cluster_id=st.one_of(st.none(), st.text(max_size=9)),
    controller_id=INT32,
    topics=st.lists(
        st.builds(
            metadata.TopicEntry,
            name=NAMES,
            topic_id=NONZERO_IDS,
            partitions=st.lists(partitions, max_size=3),
            error=st.sampled_from(ErrorCode),
            is_internal=st.booleans(),
            operations=INT32,
        ),
        max_size=3,
    ),
    cluster_operations=INT32,
)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=draws(20))
@given(fields=requests)
def test_request_is_read_as_kio_writes_it(version: int, fields: dict[str, Any]) -> None:
    if version == 0 and fields["topics"] is None:
        fields["topics"] = []  # how v0 asks for all
    request = metadata.decode_metadata_request(kio_request("metadata", version, fields), version)
    topics = fields["topics"]
    if version == 0 and not topics:
        topics = None
    if topics is not None:
        topics = [(it["topic_id"] if version >= 10 else UUID(int=0), it["name"]) for it in topics]
    assert request.topics == topics
    if version >= 4:
        assert request.allow_auto_topic_creation is fields["allow_auto_topic_creation"]
    if version >= 8:
        asked = fields["include_topic_authorized_operations"]
        assert request.include_topic_operations is asked
    if 8 <= version <= 10:
        asked = fields["include_cluster_authorized_operations"]
        assert request.include_cluster_operations is asked


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=draws(20))
@given(meant=responses)
def test_response_is_read_by_kio_as_it_was_meant(
    version: int, meant: metadata.MetadataResponse
) -> None:
    body = metadata.encode_metadata_response(version, meant)
    read = kio_response("metadata", version, body)
    for broker, seen in zip(meant.brokers, read.brokers, strict=True):
        assert (seen.node_id, seen.host, seen.port) == broker[:3]
        assert version < 1 or seen.rack == broker.rack
    assert version < 2 or read.cluster_id == meant.cluster_id
    assert version < 1 or read.controller_id == meant.controller_id
    if 8 <= version <= 10:
        assert read.cluster_authorized_operations == meant.cluster_operations
    for topic, seen in zip(meant.topics, read.topics, strict=True):
        assert (seen.error_code, seen.name) == (topic.error, topic.name)
        assert version < 1 or seen.is_internal is topic.is_internal
        assert version < 8 or seen.topic_authorized_operations == topic.operations
        assert version < 10 or seen.topic_id == topic.topic_id
        for partition, it in zip(topic.partitions, seen.partitions, strict=True):
            _assert_same(version, partition, it)


def _assert_same(version: int, meant: metadata.PartitionEntry, read: Any) -> None:
    assert (read.partition_index, read.error_code) == (meant.partition, meant.error)
    assert read.leader_id == meant.leader_id
    assert list(read.replica_nodes) == meant.replicas
    assert list(read.isr_nodes) == meant.in_sync
    assert version < 5 or list(read.offline_replicas) == meant.offline
    assert version < 7 or read.leader_epoch == meant.leader_epoch


@pytest.mark.parametrize("version", [12, 13])
def test_response_may_leave_out_the_name_of_an_unknown_topic_id(version: int) -> None:
    entry = metadata.TopicEntry(None, UUID(int=7), error=ErrorCode.UNKNOWN_TOPIC_ID)
    body = metadata.encode_metadata_response(
        version, metadata.MetadataResponse([], "cluster", 1, [entry])
    )
    assert kio_response("metadata", version, body).topics[0].name is None


@given(version=st.sampled_from(VERSIONS), fields=requests)
def test_request_that_ends_too_early_is_refused(version: int, fields: dict[str, Any]) -> None:
    if version == 0:
        fields["topics"] = fields["topics"] or []
    body = kio_request("metadata", version, fields)
    with pytest.raises(ProtocolError):
        metadata.decode_metadata_request(body[:-1], version)


@given(version=st.sampled_from(VERSIONS), body=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(version: int, body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        metadata.decode_metadata_request(body, version)
