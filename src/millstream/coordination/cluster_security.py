"""Access control, SCRAM credentials and quotas: their metadata records, and how these change them.

The records are Kafka's, all of version 0:

    type  record                              what it says
    11    UserScramCredentialRecord           a user has this credential for a mechanism
    14    ClientQuotaRecord                   a quota of an entity is set or removed
    18    AccessControlEntryRecord            an access control entry exists, with this id
    19    RemoveAccessControlEntryRecord      it is gone
    22    RemoveUserScramCredentialRecord     the credential is gone
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from millstream.coordination.record_codec import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT32,
    NULLABLE_STRING,
    STRING,
    UUID,
    ArrayOf,
    Field,
    Schema,
)
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import AclEntry, AclFilter

if TYPE_CHECKING:
    from millstream.security.scram import ScramCredential

ScramKey: TypeAlias = tuple[str, int]
"""A user, and a mechanism with Kafka's number: 1 is SCRAM-SHA-256, 2 SCRAM-SHA-512."""

QuotaEntity: TypeAlias = frozenset[tuple[str, str | None]]
"""To whom a quota applies, e.g. {("user", "a"), ("client-id", None)}; None is the default."""


ACLS_PER_REQUEST_MAX = 10_000  # as in Kafka


class AccessControlEntryRecord(NamedTuple):
    """An access control entry exists."""

    id: uuid.UUID
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    @property
    def entry(self) -> AclEntry:
        return AclEntry(*self[1:])


class RemoveAccessControlEntryRecord(NamedTuple):
    """An access control entry is gone."""

    id: uuid.UUID


class UserScramCredentialRecord(NamedTuple):
    """A user has this credential, for one mechanism."""

    name: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @property
    def credential(self) -> ScramCredential:
        # Imported only where there are credentials: it takes a start longer.
        from millstream.security.scram import ScramCredential

        return ScramCredential(self.salt, self.stored_key, self.server_key, self.iterations)

    @classmethod
    def of(cls, key: ScramKey, it: ScramCredential) -> UserScramCredentialRecord:
        return cls(*key, it.salt, it.stored_key, it.server_key, it.iterations)

    def __repr__(self) -> str:
        """Without the keys, which must not get into logs."""
        return f"UserScramCredentialRecord({self.name!r}, {self.mechanism}, {self.credential!r})"


class RemoveUserScramCredentialRecord(NamedTuple):
    """A user no longer has a credential for this mechanism."""

    name: str
    mechanism: int


class QuotaEntityPart(NamedTuple):
    type: str
    name: str | None


class ClientQuotaRecord(NamedTuple):
    """A quota of an entity is set, or removed."""

    entity: tuple[QuotaEntityPart, ...]
    key: str
    value: float
    remove: bool = False

    @classmethod
    def of(cls, entity: QuotaEntity, key: str, value: float | None) -> ClientQuotaRecord:
        """None removes it. The parts of the entity are in Kafka's order."""
        parts = tuple(sorted((QuotaEntityPart(*part) for part in entity), key=lambda it: it.type))
        return cls(parts, key, 0.0 if value is None else value, remove=value is None)


SecurityRecord: TypeAlias = (
    AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | ClientQuotaRecord
)


def _flexible(cls: type[Any], *fields: Field) -> Schema[Any]:
    return Schema(cls, fields, flexible_since=0)


_PART = _flexible(QuotaEntityPart, Field("type", STRING), Field("name", NULLABLE_STRING))

SECURITY_SCHEMAS: Mapping[int, Schema[Any]] = {
    11: _flexible(
        UserScramCredentialRecord,
        Field("name", STRING),
        Field("mechanism", INT8),
        Field("salt", BYTES),
        Field("stored_key", BYTES),
        Field("server_key", BYTES),
        Field("iterations", INT32),
    ),
    14: _flexible(
        ClientQuotaRecord,
        Field("entity", ArrayOf(_PART)),
        Field("key", STRING),
        Field("value", FLOAT64),
        Field("remove", BOOL),
    ),
    18: _flexible(
        AccessControlEntryRecord,
        Field("id", UUID),
        Field("resource_type", INT8),
        Field("resource_name", STRING),
        Field("pattern_type", INT8),
        Field("principal", STRING),
        Field("host", STRING),
        Field("operation", INT8),
        Field("permission", INT8),
    ),
    19: _flexible(RemoveAccessControlEntryRecord, Field("id", UUID)),
    22: _flexible(RemoveUserScramCredentialRecord, Field("name", STRING), Field("mechanism", INT8)),
}
"""Types of records; each has only version 0."""


class SecurityImage(NamedTuple):
    """What the records say. The mappings are immutable; a draft creates new ones."""

    acls: Mapping[uuid.UUID, AclEntry]
    scram: Mapping[ScramKey, ScramCredential]
    quotas: Mapping[QuotaEntity, Mapping[str, float]]

    def records(self) -> Iterator[SecurityRecord]:
        """Records that create this image from the empty one."""
        for key, credential in self.scram.items():
            yield UserScramCredentialRecord.of(key, credential)
        for entity, quotas in self.quotas.items():
            for name, value in quotas.items():
                yield ClientQuotaRecord.of(entity, name, value)
        for entry_id, entry in self.acls.items():
            yield AccessControlEntryRecord(entry_id, *entry)


class SecurityDraft:
    """A mutable draft: copies each mapping on first write."""

    def __init__(self, base: SecurityImage) -> None:
        self._base = base
        self._acls: dict[uuid.UUID, AclEntry] | None = None
        self._scram: dict[ScramKey, ScramCredential] | None = None
        self._quotas: dict[QuotaEntity, Mapping[str, float]] | None = None

    def replay(self, record: SecurityRecord) -> None:
        match record:
            case AccessControlEntryRecord():
                self._changed_acls()[record.id] = record.entry
            case RemoveAccessControlEntryRecord():
                self._changed_acls().pop(record.id, None)
            case UserScramCredentialRecord():
                self._changed_scram()[record.name, record.mechanism] = record.credential
            case RemoveUserScramCredentialRecord():
                self._changed_scram().pop((record.name, record.mechanism), None)
            case ClientQuotaRecord():
                self._set_quota(record)

    def _changed_acls(self) -> dict[uuid.UUID, AclEntry]:
        if self._acls is None:
            self._acls = dict(self._base.acls)
        return self._acls

    def _changed_scram(self) -> dict[ScramKey, ScramCredential]:
        if self._scram is None:
            self._scram = dict(self._base.scram)
        return self._scram

    def _set_quota(self, record: ClientQuotaRecord) -> None:
        if self._quotas is None:
            self._quotas = dict(self._base.quotas)
        entity: QuotaEntity = frozenset((part.type, part.name) for part in record.entity)
        quotas = dict(self._quotas.pop(entity, {}))
        quotas.pop(record.key, None)
        if not record.remove:
            quotas[record.key] = record.value
        if quotas:
            self._quotas[entity] = quotas

    def finish(self) -> SecurityImage:
        base = self._base
        return SecurityImage(
            base.acls if self._acls is None else self._acls,
            base.scram if self._scram is None else self._scram,
            base.quotas if self._quotas is None else self._quotas,
        )


def decide_new_acls(
    acls: Mapping[uuid.UUID, AclEntry], entries: Iterable[AclEntry]
) -> list[AccessControlEntryRecord]:
    """The records that create those that do not exist yet."""
    known = set(acls.values())
    missing = [entry for entry in dict.fromkeys(entries) if entry not in known]
    return [AccessControlEntryRecord(uuid.uuid4(), *entry) for entry in missing]


def decide_removed_acls(
    acls: Mapping[uuid.UUID, AclEntry], filters: Sequence[AclFilter]
) -> tuple[list[RemoveAccessControlEntryRecord], list[list[AclEntry]]]:
    """The records that remove what any of the filters matches, and what each of them matches.
    Raises `ApiError` if these are too many."""
    removed: dict[uuid.UUID, None] = {}
    matches: list[list[AclEntry]] = []
    ids_of: dict[AclEntry, list[uuid.UUID]] = {}  # other writers may have made two of one entry
    for entry_id, entry in acls.items():
        ids_of.setdefault(entry, []).append(entry_id)
    for each in filters:
        if each.names_one_entry:  # there may be thousands of them, and of entries
            ids = ids_of.get(AclEntry(*each), [])  # type: ignore[arg-type]
        else:
            ids = [entry_id for entry_id, entry in acls.items() if each.matches(entry)]
        removed.update(dict.fromkeys(ids))
        matches.append([acls[entry_id] for entry_id in ids])
    if len(removed) > ACLS_PER_REQUEST_MAX:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot remove more than {ACLS_PER_REQUEST_MAX} acls in a single delete operation.",
        )
    return [RemoveAccessControlEntryRecord(entry_id) for entry_id in removed], matches


def decide_scram(
    scram: Mapping[ScramKey, ScramCredential],
    changes: Mapping[ScramKey, ScramCredential | None],
) -> tuple[list[SecurityRecord], dict[str, ApiError | None]]:
    """The records that set credentials or (None) remove them, and the outcome for each user. If
    one of a user's credentials cannot be removed, nothing is changed for that user."""
    outcome: dict[str, ApiError | None] = dict.fromkeys(user for user, _ in changes)
    for key, credential in changes.items():
        if credential is None and key not in scram:
            outcome[key[0]] = ApiError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
    records: list[SecurityRecord] = []
    for key, credential in changes.items():
        if outcome[key[0]] is not None:
            continue
        if credential is None:
            records.append(RemoveUserScramCredentialRecord(*key))
        else:
            records.append(UserScramCredentialRecord.of(key, credential))
    return records, outcome


def decide_quotas(
    quotas: Mapping[QuotaEntity, Mapping[str, float]],
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
) -> list[ClientQuotaRecord]:
    """The records that set quotas or (None) remove them; nothing for those that are so already."""
    return [
        ClientQuotaRecord.of(entity, key, value)
        for entity, wanted in changes.items()
        for key, value in wanted.items()
        if quotas.get(entity, {}).get(key) != value
    ]
