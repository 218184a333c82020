"""The cluster's image: what records do to it, and what two images tell about the change."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.cluster import ClusterImage, Resource, ResourceType, TopicChanges
from millstream.coordination.cluster_records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from millstream.coordination.record_codec import CorruptRecord

IDS = [uuid.UUID(int=number) for number in range(100, 105)]


def topic(number: int, partitions: int = 1, name: str | None = None) -> list[MetadataRecord]:
    records: list[MetadataRecord] = [TopicRecord(name or f"t{number}", IDS[number])]
    return records + [
        PartitionRecord(index, IDS[number], (1,), (1,), 1) for index in range(partitions)
    ]


def image(*records: MetadataRecord) -> ClusterImage:
    return ClusterImage().apply(records, len(records))


def test_topic_is_found_by_name_and_id_with_its_partitions_in_order() -> None:
    first, *partitions = topic(0, 3)
    made = image(first, *reversed(partitions))
    assert made.topics["t0"] is made.topics_by_id[IDS[0]]
    assert [it.leader_epoch for it in made.topics["t0"].partitions] == [0, 0, 0]
    assert made.partition_count == 3


def test_naming_a_leader_raises_both_epochs_and_other_changes_one() -> None:
    before = image(*topic(0))
    elected = before.apply([PartitionChangeRecord(0, IDS[0], leader=1)], 5)
    shrunk = elected.apply([PartitionChangeRecord(0, IDS[0], isr=())], 6)
    assert (elected.topics["t0"].partitions[0].leader_epoch, elected.version) == (1, 5)
    assert elected.topics["t0"].partitions[0].partition_epoch == 1
    assert shrunk.topics["t0"].partitions[0].leader_epoch == 1
    assert shrunk.topics["t0"].partitions[0].partition_epoch == 2
    assert shrunk.topics["t0"].partitions[0].isr == ()


def test_image_is_not_changed_by_what_follows() -> None:
    before = image(*topic(0), ConfigRecord(2, "t0", "retention.ms", "1"))
    before.apply([RemoveTopicRecord(IDS[0]), ConfigRecord(4, "", "x", "y")], 9)
    assert list(before.topics) == ["t0"]
    assert before.topic_overrides("t0") == {"retention.ms": "1"}


def test_removed_topic_takes_its_settings_along() -> None:
    made = image(*topic(0), ConfigRecord(2, "t0", "retention.ms", "1"))
    gone = made.apply([RemoveTopicRecord(IDS[0])], 9)
    assert (dict(gone.topics), dict(gone.topics_by_id), dict(gone.configs)) == ({}, {}, {})


def test_topic_made_anew_under_the_same_name_keeps_only_the_new() -> None:
    made = image(*topic(0, 3), ConfigRecord(2, "t0", "retention.ms", "1"))
    anew = made.apply([RemoveTopicRecord(IDS[0]), *topic(1, 1, name="t0")], 9)
    assert anew.topics["t0"].id == IDS[1]
    assert len(anew.topics["t0"].partitions) == 1
    assert anew.topic_overrides("t0") == {}


def test_setting_is_replaced_and_unset() -> None:
    made = image(ConfigRecord(32, "g", "a", "1"), ConfigRecord(32, "g", "a", "2"))
    assert made.config(ResourceType.GROUP, "g") == {"a": "2"}
    assert made.apply([ConfigRecord(32, "g", "a", None)], 9).configs == {}


def test_producer_ids_never_go_back() -> None:
    made = image(ProducerIdsRecord(1, -1, 2000), ProducerIdsRecord(1, -1, 1000))
    assert made.next_producer_id == 2000


def test_broker_is_registered_and_fenced() -> None:
    endpoint = BrokerEndpoint("PLAINTEXT", "h", 9092)
    made = image(RegisterBrokerRecord(1, IDS[0], 7, (endpoint,)))
    assert made.brokers[1].endpoint("PLAINTEXT") == endpoint
    assert made.brokers[1].endpoint("OTHER") is None
    fenced = made.apply([BrokerRegistrationChangeRecord(1, 7, fenced=1)], 9)
    assert fenced.brokers[1].fenced
    unfenced = fenced.apply([BrokerRegistrationChangeRecord(1, 7, fenced=-1)], 10)
    assert not unfenced.brokers[1].fenced


def test_feature_that_was_switched_off_is_remembered_as_such() -> None:
    made = image(FeatureLevelRecord("f", 1), FeatureLevelRecord("f", 0))
    assert made.features == {"f": 0}
    assert ClusterImage().apply(made.records(), made.version).features == {"f": 0}


def test_shutdown_and_recovery_survive_a_snapshot() -> None:
    made = image(
        RegisterBrokerRecord(1, IDS[3], 1, ()),
        BrokerRegistrationChangeRecord(1, 1, in_controlled_shutdown=1),
        *topic(0),
        PartitionChangeRecord(0, IDS[0], leader=1, leader_recovery_state=1),
    )
    assert made.brokers[1].in_controlled_shutdown
    assert not made.brokers[1].is_active
    assert made.topics["t0"].partitions[0].leader_recovery_state == 1
    decoded = map(decode_record, map(encode_record, made.records()))
    assert ClusterImage().apply(decoded, made.version) == made


def test_registration_ends_a_shutdown_and_other_changes_keep_it() -> None:
    made = image(
        RegisterBrokerRecord(1, IDS[3], 1, (), in_controlled_shutdown=True),
        BrokerRegistrationChangeRecord(1, 1, fenced=1),
    )
    assert made.brokers[1].in_controlled_shutdown
    again = made.apply([RegisterBrokerRecord(1, IDS[4], 2, ())], 9)
    assert again.brokers[1].is_active


def test_recovered_leader_is_no_longer_recovering() -> None:
    made = image(*topic(0), PartitionChangeRecord(0, IDS[0], leader=1, leader_recovery_state=1))
    made = made.apply([PartitionChangeRecord(0, IDS[0], isr=(1,))], 8)
    assert made.topics["t0"].partitions[0].leader_recovery_state == 1
    made = made.apply([PartitionChangeRecord(0, IDS[0], leader_recovery_state=0)], 9)
    assert made.topics["t0"].partitions[0].leader_recovery_state == 0


@pytest.mark.parametrize(
    "record",
    [PartitionRecord(0, IDS[4], (1,), (1,), 1), PartitionChangeRecord(3, IDS[0], leader=1)],
)
def test_partition_of_nothing_is_refused(record: MetadataRecord) -> None:
    with pytest.raises(CorruptRecord, match="does not exist"):
        image(*topic(0)).apply([record], 9)


def test_changes_between_images_are_told() -> None:
    first = image(*topic(0), *topic(1))
    second = first.apply([*topic(2), PartitionChangeRecord(0, IDS[1], leader=1)], 9)
    third = second.apply([RemoveTopicRecord(IDS[0])], 10)
    assert second.changed_topics(first) == TopicChanges(
        created=(second.topics["t2"],),
        changed=((first.topics["t1"], second.topics["t1"]),),
        deleted=(),
    )
    # Two commits told as one: the walk over all topics agrees with the notes of each commit.
    assert third.changed_topics(first) == TopicChanges(
        created=(third.topics["t2"],),
        changed=((first.topics["t1"], third.topics["t1"]),),
        deleted=(first.topics["t0"],),
    )
    assert third.apply([NoOpRecord()], 11).changed_topics(third) == TopicChanges((), (), ())


def test_changed_settings_are_told_by_resource() -> None:
    first = image(ConfigRecord(2, "a", "k", "1"), ConfigRecord(2, "b", "k", "1"))
    second = first.apply([ConfigRecord(2, "b", "k", "2"), ConfigRecord(4, "", "k", "3")], 9)
    assert second.changed_configs(first) == {
        Resource(ResourceType.TOPIC, "b"),
        Resource(ResourceType.BROKER, ""),
    }


@st.composite
def histories(draw: st.DrawFn) -> list[MetadataRecord]:
    """Commits that a controller could have made."""
    made = ClusterImage()
    history: list[MetadataRecord] = []
    for step in range(draw(st.integers(0, 20))):
        number = draw(st.integers(0, len(IDS) - 1))
        options: list[list[MetadataRecord]] = [
            [ConfigRecord(draw(st.sampled_from([2, 4, 32])), f"t{number}", "k", str(step))],
            [ProducerIdsRecord(1, -1, step * 1000)],
            [FeatureLevelRecord("f", draw(st.integers(0, 3)))],
        ]
        if IDS[number] in made.topics_by_id:
            options.append([RemoveTopicRecord(IDS[number])])
            options.append([PartitionChangeRecord(0, IDS[number], leader=1)])
        else:
            options.append(topic(number, draw(st.integers(1, 3))))
        chosen = draw(st.sampled_from(options))
        made = made.apply(chosen, step)
        history += chosen
    return history


@given(histories())
def test_image_is_remade_from_its_own_records(history: list[MetadataRecord]) -> None:
    made = ClusterImage().apply(history, 7)
    assert ClusterImage().apply(made.records(), 7) == made


@given(histories())
def test_image_does_not_depend_on_how_records_are_grouped(history: list[MetadataRecord]) -> None:
    at_once = ClusterImage().apply(history, 7)
    one_by_one = ClusterImage()
    for record in history:
        one_by_one = one_by_one.apply([record], 7)
    assert one_by_one.apply([], 7) == at_once
