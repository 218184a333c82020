"""A follower's side of a fetch session (KIP-227): its leader gets only the positions that changed.

    session.fetch(key, position)         fetch a partition from there on
    session.leave_out(key)               do not fetch it for now
    session.next_request()            -> the session's id and epoch, positions, forgotten partitions
    session.answered(session_id, error)  the leader has answered
    session.lost()                       it is not known whether the leader got the request

The first request contains all positions. If the leader has a session for them, it answers with an
id, and the next requests contain only what has changed. A leader without one (it has no room, or is
of a version without sessions for followers) answers id 0, and gets all positions each time. After
an error, or without an answer, all positions are sent again, and the former session is closed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from typing import Generic, NamedTuple, TypeVar

from millstream.coordination.replication.follower import FetchPosition
from millstream.errors import ErrorCode

NO_SESSION = 0
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1

KeyT = TypeVar("KeyT", bound=Hashable)


class SessionRequest(NamedTuple, Generic[KeyT]):
    """What a request contains."""

    session_id: int
    session_epoch: int
    positions: Mapping[KeyT, FetchPosition]
    forgotten: tuple[KeyT, ...]


class FollowerSession(Generic[KeyT]):
    """See the module. One for each leader."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._positions: dict[KeyT, FetchPosition] = {}
        self._changed: dict[KeyT, None] = {}  # since the last request
        self._forgotten: dict[KeyT, None] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def keys(self) -> Set[KeyT]:
        """The partitions that are fetched."""
        return self._positions.keys()

    def fetch(self, key: KeyT, position: FetchPosition) -> None:
        if self._positions.get(key) != position:
            self._positions[key] = position
            self._changed[key] = None
            self._forgotten.pop(key, None)

    def leave_out(self, key: KeyT) -> None:
        if self._positions.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None

    def send_again(self) -> None:
        """The next request contains all positions."""
        self._epoch = INITIAL_EPOCH

    def next_request(self) -> SessionRequest[KeyT]:
        positions = self._positions
        if self._epoch == INITIAL_EPOCH:
            request = SessionRequest(self._id, INITIAL_EPOCH, dict(positions), ())
        else:
            changed = {key: positions[key] for key in self._changed}
            request = SessionRequest(self._id, self._epoch, changed, tuple(self._forgotten))
        self._changed.clear()
        self._forgotten.clear()
        return request

    def answered(self, session_id: int, error: int) -> None:
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._begin(NO_SESSION)
        elif error:
            self.lost()
        elif session_id == NO_SESSION:  # the leader has no room, or has closed the session
            self._begin(NO_SESSION)
        elif self._epoch == INITIAL_EPOCH:
            self._id, self._epoch = session_id, INITIAL_EPOCH + 1
        elif session_id != self._id:
            self.lost()
        else:
            self._epoch = self._epoch + 1 if self._epoch < EPOCH_MAX else INITIAL_EPOCH + 1

    def lost(self) -> None:
        self._begin(self._id)  # the leader closes it

    def _begin(self, former: int) -> None:
        self._id, self._epoch = former, INITIAL_EPOCH
