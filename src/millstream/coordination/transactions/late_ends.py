"""The guard against a late EndTxn of protocol v1.

With v1 all transactions of a producer have one epoch. So a delayed EndTxn, which its client has
already repeated on another connection, looks like the end of the transaction that is open *now*: it
would commit half of it. (v2 fixes this: every end bumps the epoch.)

It is detected by its connection. A client ends a transaction on the connection on which it adds
partitions, or on a later one; a late EndTxn arrives on an earlier one. So an EndTxn is refused when
the same client (same client id and host) has joined a transaction of this id over a connection
opened later than the one the EndTxn came by.

Another process may end the transaction of a dead process, on any connection: it is not the same
client. Two clients with the same client id and host cannot be distinguished; the one that connected
first must then reconnect, or better, use its own client id.

This state is kept for the producer's epoch, and lost in a restart, like the connections. See
docs/decisions/0009-late-end-of-transaction.md.
"""

from __future__ import annotations

from typing import NamedTuple

CLIENTS_MAX = 16  # clients remembered of one epoch; only hostile ones are so many


class ClientConnection(NamedTuple):
    """The client of a request and its connection; connection ids rise as they are accepted."""

    client_id: str | None
    host: str
    connection_id: int


class LateEndGuard:
    """The newest connection of each client that joined a transaction of this epoch."""

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        self._newest: dict[tuple[str | None, str], int] = {}

    def joined(self, connection: ClientConnection) -> None:
        client = (connection.client_id, connection.host)
        newest = max(connection.connection_id, self._newest.pop(client, connection.connection_id))
        self._newest[client] = newest
        if len(self._newest) > CLIENTS_MAX:
            del self._newest[next(iter(self._newest))]

    def is_late(self, connection: ClientConnection) -> bool:
        """Whether the same client has since joined a transaction over a newer connection."""
        newest = self._newest.get((connection.client_id, connection.host))
        return newest is not None and connection.connection_id < newest

    def forget(self) -> None:
        """A new epoch: it fences requests of the old one."""
        self._newest.clear()
