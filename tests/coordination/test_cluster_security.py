"""Access control, credentials and quotas in the metadata: records, images, decisions."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import MetadataRecord, decode_record, encode_record
from millstream.coordination.cluster_security import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    QuotaEntityPart,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    SecurityRecord,
    UserScramCredentialRecord,
    decide_new_acls,
    decide_quotas,
    decide_removed_acls,
    decide_scram,
)
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import AclEntry, AclFilter, Operation, PatternType, ResourceType
from millstream.security.scram import ScramCredential

ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
READ_T = AclEntry(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:a", "*", Operation.READ, 3)
WRITE_T = READ_T._replace(operation=Operation.WRITE)
CREDENTIAL = ScramCredential(b"salt", b"stored", b"server", 4096)

texts = st.text(max_size=8)
names = st.sampled_from(["a", "b"])
records: st.SearchStrategy[SecurityRecord] = st.one_of(
    st.builds(
        AccessControlEntryRecord,
        st.integers(0, 2).map(lambda number: uuid.UUID(int=number)),
        st.integers(2, 7), texts, st.integers(3, 4), texts, texts, st.integers(2, 15),
        st.integers(2, 3),
    ),
    st.builds(
        RemoveAccessControlEntryRecord, st.integers(0, 2).map(lambda it: uuid.UUID(int=it))
    ),
    st.builds(
        UserScramCredentialRecord, names, st.integers(1, 2), st.binary(max_size=9),
        st.binary(max_size=9), st.binary(max_size=9), st.integers(4096, 16384),
    ),
    st.builds(RemoveUserScramCredentialRecord, names, st.integers(1, 2)),
    st.builds(
        ClientQuotaRecord.of,
        st.sampled_from(
            [
                frozenset({("user", "a")}),
                frozenset({("user", None)}),
                frozenset({("user", "a"), ("client-id", None)}),
            ]
        ),
        st.sampled_from(["producer_byte_rate", "consumer_byte_rate"]),
        st.none() | st.floats(0, 1e12),
    ),
)  # fmt: skip


@given(records)
def test_record_survives_encoding_and_decoding(record: SecurityRecord) -> None:
    assert decode_record(encode_record(record)) == record


def size_and(text: str) -> str:
    return f"{len(text) + 1:02x}" + text.encode().hex()


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            AccessControlEntryRecord(ID, *READ_T),
            "01 12 00" + ID.hex + "02 02 74 03" + size_and("User:a") + "02 2a 03 03 00",
        ),
        (RemoveAccessControlEntryRecord(ID), "01 13 00" + ID.hex + "00"),
        (
            UserScramCredentialRecord("a", 1, b"s", b"k", b"v", 4096),
            "01 0b 00 02 61 01 02 73 02 6b 02 76 00001000 00",
        ),
        (RemoveUserScramCredentialRecord("a", 2), "01 16 00 02 61 02 00"),
        (
            ClientQuotaRecord.of(frozenset({("user", "a"), ("client-id", None)}), "k", 1.0),
            "01 0e 00 03" + size_and("client-id") + "00 00" + size_and("user") + "02 61 00"
            "02 6b 3ff0000000000000 00 00",
        ),
        (
            ClientQuotaRecord.of(frozenset({("ip", None)}), "k", None),
            "01 0e 00 02" + size_and("ip") + "00 00 02 6b 0000000000000000 01 00",
        ),
    ],
)  # fmt: skip
def test_record_is_encoded_as_kafka_does(record: MetadataRecord, expected: str) -> None:
    assert encode_record(record) == bytes.fromhex(expected)


@given(st.lists(records, max_size=20), st.integers(0, 20))
def test_snapshot_and_grouping_change_nothing(changes: list[SecurityRecord], cut: int) -> None:
    at_once = ClusterImage().apply(changes, 1)
    in_two = ClusterImage().apply(changes[:cut], 0).apply(changes[cut:], 1)
    loaded = ClusterImage().apply(at_once.records(), 1)
    assert at_once.security == in_two.security == loaded.security
    stored = [decode_record(encode_record(record)) for record in at_once.records()]
    assert stored == list(loaded.records())
    assert len(stored) == at_once.record_count


def test_image_shares_what_did_not_change() -> None:
    before = ClusterImage().apply([AccessControlEntryRecord(ID, *READ_T)], 0)
    after = before.apply([UserScramCredentialRecord.of(("a", 1), CREDENTIAL)], 1)
    assert after.acls is before.acls
    assert after.acls == {ID: READ_T}
    assert after.scram == {("a", 1): CREDENTIAL}
    assert after.quotas is before.quotas


def test_quota_that_is_removed_leaves_no_empty_entity() -> None:
    user = frozenset({("user", "a")})
    image = ClusterImage().apply([ClientQuotaRecord.of(user, "k", 1.5)], 0)
    assert image.quotas == {user: {"k": 1.5}}
    assert image.apply([ClientQuotaRecord.of(user, "k", None)], 1).quotas == {}


def test_entity_in_another_order_is_the_same() -> None:
    parts = (QuotaEntityPart("user", "a"), QuotaEntityPart("client-id", "c"))
    image = ClusterImage().apply([ClientQuotaRecord(parts, "k", 1.0)], 0)
    removal = ClientQuotaRecord(parts[::-1], "k", 0.0, remove=True)
    assert image.apply([removal], 1).quotas == {}


def test_new_entry_is_created_once() -> None:
    created = decide_new_acls({}, [READ_T, WRITE_T, READ_T])
    assert [record.entry for record in created] == [READ_T, WRITE_T]
    assert created[0].id != created[1].id
    image = ClusterImage().apply(created, 0)
    assert decide_new_acls(image.acls, [WRITE_T]) == []


def test_each_filter_says_what_it_matched_and_each_entry_is_removed_once() -> None:
    acls = {uuid.UUID(int=1): READ_T, uuid.UUID(int=2): WRITE_T}
    filters = [AclFilter(operation=Operation.READ), AclFilter(), AclFilter(principal="User:x")]
    removals, matches = decide_removed_acls(acls, filters)
    assert [record.id.int for record in removals] == [1, 2]
    assert matches == [[READ_T], [READ_T, WRITE_T], []]


def test_entry_that_exists_twice_is_removed_twice() -> None:
    """Kafka's own tools can make such metadata."""
    acls = {uuid.UUID(int=1): READ_T, uuid.UUID(int=2): WRITE_T, uuid.UUID(int=3): READ_T}
    removals, matches = decide_removed_acls(acls, [AclFilter(*READ_T)])
    assert [record.id.int for record in removals] == [1, 3]
    assert matches == [[READ_T, READ_T]]


def test_credentials_of_a_user_are_changed_together() -> None:
    scram = {("a", 1): CREDENTIAL}
    wrong, outcome = decide_scram(scram, {("a", 2): None, ("a", 1): None, ("b", 1): CREDENTIAL})
    assert wrong == [UserScramCredentialRecord.of(("b", 1), CREDENTIAL)]
    assert outcome["b"] is None
    assert outcome["a"] is not None
    assert outcome["a"].code is ErrorCode.RESOURCE_NOT_FOUND
    removed, _ = decide_scram(scram, {("a", 1): None})
    assert removed == [RemoveUserScramCredentialRecord("a", 1)]


def test_only_quotas_that_differ_are_written() -> None:
    user = frozenset({("user", "a")})
    quotas = {user: {"k": 1.0, "l": 2.0}}
    changes = {user: {"k": 1.0, "l": None, "m": None, "n": 3.0}}
    assert decide_quotas(quotas, changes) == [
        ClientQuotaRecord.of(user, "l", None),
        ClientQuotaRecord.of(user, "n", 3.0),
    ]


def test_keys_of_a_credential_are_not_shown() -> None:
    shown = repr(UserScramCredentialRecord.of(("a", 1), CREDENTIAL))
    assert "stored" not in shown
    assert "server" not in shown


def test_thousands_of_entries_are_removed_by_as_many_filters() -> None:
    """One filter for each of them, as `millstream acl remove` sends: not every one by every one."""
    entries = [READ_T._replace(resource_name=f"t{number}") for number in range(10_001)]
    image = ClusterImage().apply(decide_new_acls({}, entries), 0)
    filters = [AclFilter(*entry) for entry in entries]
    removals, matches = decide_removed_acls(image.acls, filters[:-1])
    assert len(removals) == 10_000
    assert matches[7] == [entries[7]]
    with pytest.raises(ApiError, match="Cannot remove more than 10000 acls"):
        decide_removed_acls(image.acls, filters)
    assert decide_removed_acls(image.acls, [AclFilter(*WRITE_T)]) == ([], [[]])
