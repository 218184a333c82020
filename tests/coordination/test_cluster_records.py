"""The metadata log's records: byte for byte what Apache Kafka writes, and back."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.cluster_records import (
    _PARTITION,
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    decode_record,
    encode_record,
)
from millstream.coordination.record_codec import CorruptRecord

TOPIC_ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")

ids = st.integers(0, 2**31 - 1)
broker_lists = st.lists(ids, max_size=4).map(tuple)
uuid_lists = st.lists(st.uuids(), max_size=3).map(tuple)
maybe_brokers = st.none() | broker_lists
texts = st.text(max_size=20)

records: st.SearchStrategy[MetadataRecord] = st.one_of(
    st.builds(TopicRecord, texts, st.uuids()),
    st.builds(
        PartitionRecord,
        partition_id=ids,
        topic_id=st.uuids(),
        replicas=broker_lists,
        isr=broker_lists,
        leader=st.integers(-1, 9),
        leader_epoch=ids,
        partition_epoch=ids,
        removing_replicas=broker_lists,
        adding_replicas=broker_lists,
        directories=uuid_lists,
        leader_recovery_state=st.sampled_from([0, 1]),
    ),
    st.builds(
        PartitionChangeRecord,
        partition_id=ids,
        topic_id=st.uuids(),
        isr=maybe_brokers,
        leader=st.integers(-2, 9),
        replicas=maybe_brokers,
        removing_replicas=maybe_brokers,
        adding_replicas=maybe_brokers,
        leader_recovery_state=st.integers(-1, 1),
        directories=st.none() | uuid_lists,
    ),
    st.builds(ConfigRecord, st.sampled_from([2, 4, 32]), texts, texts, st.none() | texts),
    st.builds(RemoveTopicRecord, st.uuids()),
    st.builds(FeatureLevelRecord, texts, st.integers(0, 30)),
    st.builds(ProducerIdsRecord, ids, st.integers(-1, 2**40), st.integers(0, 2**60)),
    st.builds(
        RegisterBrokerRecord,
        broker_id=ids,
        incarnation_id=st.uuids(),
        broker_epoch=st.integers(0, 2**60),
        endpoints=st.lists(
            st.builds(BrokerEndpoint, texts, texts, st.integers(0, 65535), st.just(0)), max_size=2
        ).map(tuple),
        features=st.lists(
            st.builds(BrokerFeature, texts, st.integers(0, 9), st.integers(0, 99)), max_size=2
        ).map(tuple),
        rack=st.none() | texts,
        fenced=st.booleans(),
        is_migrating_zk_broker=st.booleans(),
        in_controlled_shutdown=st.booleans(),
        log_dirs=uuid_lists,
    ),
    st.builds(
        BrokerRegistrationChangeRecord,
        ids,
        st.integers(0, 2**60),
        st.integers(-1, 1),
        st.integers(0, 1),
        uuid_lists,
    ),
    st.just(NoOpRecord()),
    st.builds(AbortTransactionRecord, st.none() | texts),
)


@given(records)
def test_record_survives_encoding_and_decoding(record: MetadataRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(
    st.builds(
        PartitionRecord,
        partition_id=ids,
        topic_id=st.uuids(),
        replicas=st.tuples(ids),
        isr=st.tuples(ids),
        leader=st.integers(-1, 9),
        leader_epoch=ids,
        partition_epoch=ids,
        removing_replicas=st.just(()),
        adding_replicas=st.just(()),
        directories=st.tuples(st.uuids()),
        leader_recovery_state=st.just(0),
    )
)
def test_lone_partition_is_encoded_and_decoded_as_any_other(record: PartitionRecord) -> None:
    frame = encode_record(record)
    assert len(frame) == 65
    assert frame[3:] == _PARTITION.encode(record, 1)
    assert decode_record(frame) == record


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        # Frame version, type, version; then the fields and the count of tagged ones.
        (TopicRecord("ab", TOPIC_ID), "01 02 00 03 6162" + TOPIC_ID.hex + "00"),
        (FeatureLevelRecord("f", 30), "01 0c 00 02 66 001e 00"),
        (ConfigRecord(2, "t", "k", None), "01 04 00 02 02 74 02 6b 00 00"),
        (
            PartitionRecord(1, TOPIC_ID, (1,), (1,), 1, directories=(uuid.UUID(int=0),)),
            "01 03 01 00000001" + TOPIC_ID.hex + "02 00000001 02 00000001 01 01 00000001 00000000"
            "00000000 02" + "00" * 16 + "00",
        ),
        (
            PartitionChangeRecord(1, TOPIC_ID, leader=1),
            "01 05 01 00000001" + TOPIC_ID.hex + "01 01 04 00000001",
        ),
        (ProducerIdsRecord(1, -1, 1000), "01 0f 00 00000001 ffffffffffffffff 00000000000003e8 00"),
    ],
)
def test_record_is_encoded_as_kafka_does(record: MetadataRecord, expected: str) -> None:
    assert encode_record(record) == bytes.fromhex(expected)


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("01 07 00 00000002 0000000000000009 00", BrokerRegistrationChangeRecord(2, 9, fenced=1)),
        ("01 08 00 00000002 0000000000000009 00", BrokerRegistrationChangeRecord(2, 9, fenced=-1)),
        ("01 01 00 00000002 0000000000000009 00", UnregisterBrokerRecord(2, 9)),
        ("01 17 00 01 00 02 02 6e", BeginTransactionRecord("n")),
        ("01 18 00 00", EndTransactionRecord()),
        ("01 1c 00 02 74 00", NoOpRecord()),
    ],
)
def test_record_that_only_kafka_writes_is_read(frame: str, expected: MetadataRecord) -> None:
    assert decode_record(bytes.fromhex(frame)) == expected


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ("02 02 00", "frame version 2"),
        ("01 02 07", "TopicRecord of version 7"),
        ("01 02 00 09 61", "9|8 bytes"),
    ],
)
def test_frame_of_nonsense_is_refused(frame: str, message: str) -> None:
    with pytest.raises(CorruptRecord, match=message):
        decode_record(bytes.fromhex(frame))


@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_read(frame: bytes) -> None:
    with contextlib.suppress(CorruptRecord):
        decode_record(frame)
