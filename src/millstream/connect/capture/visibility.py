"""Which transactions a database snapshot sees, and which streamed ones supersede rows read in it.

PostgreSQL writes a commit to its log before other sessions see the transaction: with a synchronous
standby that does not answer, long before. So a change can be streamed, and a later SELECT can still
return the old row. A chunk of a snapshot that is written after the change would then end the topic
on a stale value. The order in the log therefore does not decide: the snapshot's own list of
transactions does (`DatabaseSnapshot.sees`).

`ChangedKeys` remembers the keys of streamed transactions for the tables whose chunks are being
read, until a chunk's snapshot sees these transactions. A chunk's row whose key was changed by a
streamed transaction that the chunk does not see is stale, and is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

XID_BITS = 32
RECENT_MAX = 65_536  # transactions streamed before the keys of a table were tracked
KEYS_MAX = 1_000_000  # more are not listed: chunks are read again instead


@dataclass(frozen=True)
class DatabaseSnapshot:
    """A `pg_current_snapshot()`: transaction ids with 64 bits."""

    xmin: int  # all earlier ones have ended
    xmax: int  # this one and all later ones are not visible
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> DatabaseSnapshot:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(it) for it in running.split(",") if it))

    def sees(self, xid: int) -> bool:
        """Whether an ended transaction is visible; `xid` has 32 bits, as in the stream."""
        full = self.widen(xid)
        return full < self.xmin or (full < self.xmax and full not in self.in_progress)

    def widen(self, xid: int) -> int:
        """The id with 64 bits that is nearest to this snapshot."""
        full = (self.xmax >> XID_BITS << XID_BITS) | xid
        half = 1 << (XID_BITS - 1)
        if full > self.xmax + half:
            return full - (1 << XID_BITS)
        if full < self.xmax - half:
            return full + (1 << XID_BITS)
        return full


@dataclass
class _Changes:
    """The keys of one table that a transaction has changed; None: any of them."""

    keys: set[bytes] | None = field(default_factory=set)


class ChangedKeys:
    """Keys that streamed transactions have changed, in tables that are being read in chunks."""

    def __init__(self, running: Iterable[int] = ()) -> None:
        """`running`: transactions in progress when the stream continued from a stored position.
        They may have been streamed before, with keys that are not known."""
        self._recent: deque[int] = deque(maxlen=RECENT_MAX)
        self._unknown = {xid & 0xFFFFFFFF for xid in running}
        # Per table: transactions whose keys are not known, and the changes of the others.
        self._before: dict[str, set[int]] = {}
        self._changes: dict[str, dict[int, _Changes]] = {}
        self._count = 0

    @property
    def tables(self) -> Iterable[str]:
        return self._changes.keys()

    def tracks(self, table: str) -> bool:
        return table in self._changes

    def track(self, table: str) -> None:
        """Remember the keys of a table from now on."""
        if table not in self._changes:
            self._changes[table] = {}
            self._before[table] = {*self._recent, *self._unknown}

    def forget(self, table: str) -> None:
        """No more chunks of this table will be read."""
        self._before.pop(table, None)
        for changes in self._changes.pop(table, {}).values():
            self._count -= len(changes.keys or ())

    def begin(self, xid: int) -> None:
        """A transaction is being streamed."""
        self._recent.append(xid)
        self._unknown.discard(xid)
        for unknown in self._before.values():
            unknown.discard(xid)  # its keys are coming

    def add(self, table: str, xid: int, keys: Iterable[bytes | None]) -> None:
        """Keys of rows that the transaction has changed; None: of rows without a key."""
        changes = self._changes[table].setdefault(xid, _Changes())
        if changes.keys is None:
            return
        before = len(changes.keys)
        is_keyed = True
        for key in keys:
            if key is None:
                is_keyed = False
            else:
                changes.keys.add(key)
        self._count += len(changes.keys) - before
        if self._count > KEYS_MAX or not is_keyed:
            self.add_all(table, xid)

    def add_all(self, table: str, xid: int) -> None:
        """The transaction has changed any number of unknown rows: TRUNCATE, for example."""
        changes = self._changes[table].setdefault(xid, _Changes())
        self._count -= len(changes.keys or ())
        changes.keys = None

    def stale_keys(self, table: str, snapshot: DatabaseSnapshot) -> set[bytes] | None:
        """Keys whose rows, read in `snapshot`, are superseded by what was streamed.

        None: that is not known, read the chunk again. Forgets transactions that the snapshot sees:
        later snapshots see them too.
        """
        unknown = self._before[table]
        unknown -= {xid for xid in unknown if snapshot.sees(xid)}
        self._unknown -= {xid for xid in self._unknown if snapshot.sees(xid)}
        changes = self._changes[table]
        for xid in [xid for xid in changes if snapshot.sees(xid)]:
            self._count -= len(changes.pop(xid).keys or ())
        stale: set[bytes] = set()
        for change in changes.values():
            if change.keys is None:
                return None
            stale |= change.keys
        return None if unknown else stale

    def blocking(self, table: str) -> set[int]:
        """Transactions with unknown keys that chunks of this table wait for."""
        return set(self._before.get(table, ()))
