"""Which quota applies to a client: Kafka's precedence, without I/O.

A quota belongs to an entity: a user, a client id, both, or the default of either (None). The most
specific entity that has the key wins:

    user and client id         user, default client id       user
    default user, client id    both defaults                 default user
    client id                  default client id

Who shares a quota follows from that: all clients of a user share a user's quota, all users of a
client id share a client id's, and with both, each pair has its own. A default is not shared: it is
the quota of each one that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from millstream.coordination.cluster_security import QuotaEntity

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

Quotas = Mapping[QuotaEntity, Mapping[str, float]]


class Limit(NamedTuple):
    """A quota that applies, and who shares it: an empty user or client id stands for all."""

    bound: float
    user: str
    client_id: str
    is_default: bool  # of client ids: each may be a new one


class Limits:
    """The quotas of a cluster. `share` is this process's part of each."""

    def __init__(self, quotas: Quotas, share: float = 1.0) -> None:
        self._quotas = quotas
        self._share = share
        self.keys = frozenset(key for values in quotas.values() for key in values)

    def find(self, key: str, user: str, client_id: str) -> Limit | None:
        """The limit of a client, if there is any."""
        if key not in self.keys:
            return None
        any_client = (CLIENT_ID, None)
        for entity, shared_user, shared_client in (
            ({(USER, user), (CLIENT_ID, client_id)}, user, client_id),
            ({(USER, user), any_client}, user, client_id),
            ({(USER, user)}, user, ""),
            ({(USER, None), (CLIENT_ID, client_id)}, user, client_id),
            ({(USER, None), any_client}, user, client_id),
            ({(USER, None)}, user, ""),
            ({(CLIENT_ID, client_id)}, "", client_id),
            ({any_client}, "", client_id),
        ):
            bound = self._quotas.get(frozenset(entity), {}).get(key)
            if bound is not None:
                is_default = any_client in entity
                return Limit(bound * self._share, shared_user, shared_client, is_default)
        return None

    def find_ip(self, address: str) -> float | None:
        """How many connections per second an address may open."""
        if CONNECTION_CREATION_RATE not in self.keys:
            return None
        for name in (address, None):
            values = self._quotas.get(frozenset({(IP, name)}), {})
            if CONNECTION_CREATION_RATE in values:
                return values[CONNECTION_CREATION_RATE] * self._share
        return None
