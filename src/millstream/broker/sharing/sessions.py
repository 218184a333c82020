"""Share sessions: a member sends its partitions once, and numbers its requests.

A member opens its session with epoch 0; the answer makes the next request's epoch 1, and so on (a
request that comes twice, or late, is refused); epoch -1 closes it. The session also ends with its
connection: the records of a dead member are released before their locks expire. A member whose
connection is replaced opens a new session, and the end of the old connection then ends nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from uuid import UUID

from millstream.broker.replicas.fetch_sessions import SESSION_EPOCH_MAX
from millstream.errors import ApiError, ErrorCode

INITIAL_EPOCH = 0
FINAL_EPOCH = -1


class ShareSession:
    """The partitions of one member."""

    __slots__ = ("connection_id", "epoch", "group_id", "member_id", "partitions")

    def __init__(self, group_id: str, member_id: str, connection_id: int) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection_id = connection_id
        self.epoch = INITIAL_EPOCH + 1  # which the next request must have
        self.partitions: dict[tuple[UUID, int], None] = {}  # an ordered set

    def add(self, partitions: Iterable[tuple[UUID, int]]) -> None:
        self.partitions.update(dict.fromkeys(partitions))

    def remove(self, partitions: Iterable[tuple[UUID, int]]) -> None:
        for partition in partitions:
            self.partitions.pop(partition, None)

    def rotated(self, epoch: int) -> list[tuple[UUID, int]]:
        """The partitions in the order in which the request of this epoch is served.

        The order rotates by one per request, as in Kafka: the first partitions use up the limits of
        a request (records, bytes), so each partition must be first in its turn.
        """
        partitions = list(self.partitions)
        if not partitions:
            return partitions
        first = -epoch % len(partitions)
        return partitions[first:] + partitions[:first]


class ShareSessions:
    """The sessions of all members."""

    def __init__(self, *, on_close: Callable[[ShareSession], None]) -> None:
        self._on_close = on_close
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._per_group: Counter[str] = Counter()
        self._of_connection: dict[int, set[ShareSession]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def has_any(self, group_id: str) -> bool:
        return self._per_group[group_id] > 0

    def open(
        self, group_id: str, member_id: str, connection_id: int, *, sessions_max: int
    ) -> ShareSession:
        """A new session that replaces the member's last one. Its locks stay."""
        old = self._sessions.get((group_id, member_id))
        if old is not None:
            self._remove(old)
        if len(self._sessions) >= sessions_max:
            raise ApiError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"too many share sessions: the limit is {sessions_max} "
                "(group.share.max.share.sessions)",
            )
        session = ShareSession(group_id, member_id, connection_id)
        self._sessions[group_id, member_id] = session
        self._per_group[group_id] += 1
        self._of_connection.setdefault(connection_id, set()).add(session)
        return session

    def find(self, group_id: str, member_id: str) -> ShareSession:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise ApiError(
                ErrorCode.SHARE_SESSION_NOT_FOUND,
                f"member {member_id} of group {group_id} has no share session here: open a new one",
            )
        return session

    def next(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The session, if the request has the expected epoch."""
        session = self.find(group_id, member_id)
        if session.epoch != epoch:
            raise ApiError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"the share session expects epoch {session.epoch}, not {epoch}",
            )
        session.epoch = session.epoch + 1 if session.epoch < SESSION_EPOCH_MAX else 1
        return session

    def close(self, session: ShareSession) -> None:
        """The member leaves: release its records."""
        if self._sessions.get((session.group_id, session.member_id)) is session:
            self._remove(session)
            self._on_close(session)

    def close_all(self) -> None:
        for session in list(self._sessions.values()):
            self.close(session)

    def connection_closed(self, connection_id: int) -> None:
        for session in list(self._of_connection.get(connection_id, ())):
            self.close(session)

    def _remove(self, session: ShareSession) -> None:
        del self._sessions[session.group_id, session.member_id]
        self._per_group[session.group_id] -= 1
        if not self._per_group[session.group_id]:
            del self._per_group[session.group_id]
        of_connection = self._of_connection[session.connection_id]
        of_connection.discard(session)
        if not of_connection:
            del self._of_connection[session.connection_id]
