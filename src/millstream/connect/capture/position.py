"""How far a capture has come: two records of its position topic, written with the changes.

The topic `<name>.capture` is compacted and has two partitions, so that the last record of each is
found without reading much:

    0  `Position`: where the stream continues. One record in every Kafka transaction.
    1  `CaptureState`: the slot, the publication and the tables. When they change, and with each
       chunk of a snapshot.

Both are JSON with a `format` number; unknown numbers are refused. Format 1 has no owner, and format
2 no `key`, `published` and `partitions` of tables: they are added when the capture continues. A
capture that stops at any moment continues from the last committed records: everything that they
cover is in the topics, once.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from millstream.connect.capture.pgoutput import format_lsn, parse_lsn
from millstream.connect.capture.tables import CaptureError

FORMAT = 3
FORMAT_MIN = 1
POSITION_PARTITION = 0
STATE_PARTITION = 1

Phase = Literal["creating", "snapshot", "streaming"]
Progress = Literal["waiting", "copying", "done", "left"]


@dataclass(frozen=True)
class Position:
    """All transactions that end at or before `lsn` are written, and of the next one, if it was cut,
    the first `ordinal` changes of rows and `messages` logical messages."""

    lsn: int
    commit_lsn: int = 0  # of the transaction that was cut; 0: none was
    ordinal: int = 0
    messages: int = 0

    @property
    def is_cut(self) -> bool:
        return self.commit_lsn != 0

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"format": FORMAT, "lsn": format_lsn(self.lsn)}
        if self.is_cut:
            fields |= {
                "commit_lsn": format_lsn(self.commit_lsn),
                "ordinal": self.ordinal,
                "messages": self.messages,
            }
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, value: bytes) -> Position:
        fields = _decode(value, "position")
        return cls(
            parse_lsn(fields["lsn"]),
            parse_lsn(fields.get("commit_lsn", "0/0")),
            fields.get("ordinal", 0),
            fields.get("messages", 0),
        )


@dataclass(frozen=True)
class TableState:
    """A captured table, and how much of it is copied; `left` if it is not captured any more, or was
    away: changes are missing from its topic, so it is copied again when it returns."""

    oid: int
    snapshot: Progress = "waiting"
    after: tuple[str, ...] = ()  # the last key that is copied, as text
    rows: int = 0  # copied so far
    rows_expected: int = 0
    replaces: bool = False  # begins with a truncate: earlier records of the table are superseded
    key: tuple[str, ...] = ()  # the columns of `after`, as in `CopyPlan.key_order`
    published: str = ""  # what publishes it; differs if it has left the publication since
    partitions: dict[int, str] | None = None  # names by oid; None: not known

    @property
    def is_done(self) -> bool:
        return self.snapshot == "done"

    @property
    def is_unfinished(self) -> bool:
        return self.snapshot in ("waiting", "copying")

    @property
    def is_left(self) -> bool:
        return self.snapshot == "left"

    @property
    def owes_truncate(self) -> bool:
        """Whether a truncate is still to be written, before any row."""
        return self.replaces and self.snapshot in ("waiting", "left")

    def restarted(self) -> TableState:
        """To be copied from the beginning; what was copied is superseded."""
        replaces = self.replaces or self.rows > 0
        return replace(self, snapshot="waiting", after=(), key=(), rows=0, replaces=replaces)

    def left(self) -> TableState:
        return replace(self.restarted(), snapshot="left", replaces=True)

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> TableState:
        tuples = {name: tuple(fields[name]) for name in ("after", "key") if name in fields}
        partitions = fields.get("partitions")
        if partitions is not None:
            partitions = {int(oid): name for oid, name in partitions.items()}
        return cls(**fields | tuples | {"partitions": partitions})


@dataclass(frozen=True)
class CaptureState:
    """What the position refers to: another slot or database has other positions."""

    phase: Phase
    system_id: str
    timeline: int
    database: str
    slot: str
    publication: str
    publication_oid: int
    owner: str = ""  # the process that was started last
    generation: int = 1  # how often the slot was created
    start_lsn: int = 0  # the consistent point of the slot
    tables: dict[str, TableState] = field(default_factory=dict)  # by schema.name

    def encode(self) -> bytes:
        fields = asdict(self) | {"format": FORMAT, "start_lsn": format_lsn(self.start_lsn)}
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, value: bytes) -> CaptureState:
        fields = _decode(value, "state")
        del fields["format"]
        tables = {name: TableState.decode(it) for name, it in fields.pop("tables").items()}
        start_lsn = parse_lsn(fields.pop("start_lsn"))
        return cls(**fields, start_lsn=start_lsn, tables=tables)

    def with_table(self, name: str, table: TableState) -> CaptureState:
        return replace(self, tables={**self.tables, name: table})

    @property
    def unfinished(self) -> list[str]:
        """Tables that are not copied yet, in the order in which they were added."""
        return [name for name, table in self.tables.items() if table.is_unfinished]


def _decode(value: bytes, what: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(value)
    if fields.get("format") not in range(FORMAT_MIN, FORMAT + 1):
        raise CaptureError(
            f"the stored {what} has format {fields.get('format')}, this version reads "
            f"{FORMAT_MIN} to {FORMAT}; use the version that wrote it, or start over with "
            "`millstream capture resnapshot --new-slot`"
        )
    return fields
