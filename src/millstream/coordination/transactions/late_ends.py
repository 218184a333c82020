"""The guard against a late EndTxn of protocol v1.

With v1 all transactions of a producer have one epoch. So an EndTxn that was delayed on its way, and
that its client has long repeated over another connection, looks like the end of the transaction
that is open *now*: it would commit half of it. (v2 cures this: there every end raises the epoch.)

What gives it away is the connection. A client ends a transaction over the connection over which it
adds partitions, or over a later one; a late EndTxn comes over an earlier one. So an EndTxn is
refused when the same client (same client id and host) has joined a transaction of this id over a
connection opened later than the one the EndTxn came by.

Another process may end the transaction of a process that is gone, over any connection: it is not
the same client. Two clients that share both client id and host cannot be told apart; the one that
connected first must then reconnect, or better, have a client id of its own.

What is known here lives as long as the producer's epoch, and is forgotten in a restart: so are the
connections. docs/decisions/0009-late-end-of-transaction.md tells the whole story.
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
        """A new epoch: requests of the old one are told apart by that."""
        self._newest.clear()
