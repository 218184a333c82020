"""Who may do what: decisions by the access control lists in the metadata.

Each connection has `Rights`, which keep its decisions: a client does the same things all the time.
They are forgotten when the lists change, which is with the metadata, and when the connection
authenticates as somebody else.

The audit records every decision about a resource that a request names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millstream.config.authorization import super_users
from millstream.security.acl_index import AclIndex
from millstream.security.acls import OPERATIONS_OF, ResourceType, canonical_host

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from millstream.broker.metadata.store import MetadataStore
    from millstream.broker.security.audit import Audit
    from millstream.config.authorization import AuthorizationSettings
    from millstream.security.acls import AclEntry
    from millstream.security.principal import Principal

DECISIONS_MAX = 2_000  # of one connection; then all are forgotten


class Authenticated(Protocol):
    """The client of a connection."""

    principal: Principal


class Authorizer:
    """The access control lists of the cluster, and the super users."""

    def __init__(
        self, metadata: MetadataStore, config: AuthorizationSettings, audit: Audit
    ) -> None:
        self._metadata = metadata
        self.super_users = super_users(config.super_users)
        self.allows_by_default = config.allow_everyone_if_no_acl_found
        self.audit = audit
        self._acls: Mapping[UUID, AclEntry] = metadata.image.acls
        self._index = AclIndex(self._acls.values())

    @property
    def index(self) -> AclIndex:
        """The lists as they are now; another object when they have changed."""
        acls = self._metadata.image.acls
        if acls is not self._acls:
            self._acls = acls
            self._index = AclIndex(acls.values())
        return self._index

    def rights_of(self, client: Authenticated, host: str) -> Rights:
        """The rights of a connection, from this address."""
        return Rights(self, client, host)


class Rights:
    """What the client of one connection may do."""

    __slots__ = (
        "_authorizer",
        "_client",
        "_decisions",
        "_index",
        "_is_super",
        "_principal",
        "host",
    )

    def __init__(self, authorizer: Authorizer, client: Authenticated, host: str) -> None:
        self._authorizer = authorizer
        self._client = client
        self.host = canonical_host(host)
        self._decisions: dict[tuple[int, int, str | None], bool] = {}
        self._renew()

    @property
    def identity(self) -> tuple[str, str]:
        """What decisions depend on, besides the lists."""
        return str(self._client.principal), self.host

    @property
    def version(self) -> object:
        """Changes when decisions may change."""
        return self._authorizer.index

    def allows(
        self,
        operation: int,
        resource_type: int,
        name: str,
        *,
        log_denied: bool = True,
        log_allowed: bool = True,
    ) -> bool:
        """Whether the client may do this. What is only left out of an answer if it is denied is not
        to be logged, nor what is asked only to tell the client its rights."""
        authorizer = self._authorizer
        if self._index is not authorizer.index or self._principal is not self._client.principal:
            self._renew()
        key = (operation, resource_type, name)
        allowed = self._decisions.get(key)
        if allowed is None:
            allowed = self._decide(key, name)
        if allowed:
            if log_allowed and authorizer.audit.wants_allowed:
                authorizer.audit.decided(str(self._principal), self.host, *key, allowed=True)
        elif log_denied:
            authorizer.audit.decided(str(self._principal), self.host, *key, allowed=False)
        return allowed

    def allows_somewhere(self, operation: int, resource_type: int) -> bool:
        """Whether the client may do this with at least one resource of the type."""
        authorizer = self._authorizer
        if self._index is not authorizer.index or self._principal is not self._client.principal:
            self._renew()
        key = (operation, resource_type, None)
        allowed = self._decisions.get(key)
        if allowed is None:
            allowed = self._decisions[key] = self._is_super or self._index.allows_somewhere(
                str(self._principal), self.host, operation, resource_type,
                by_default=authorizer.allows_by_default,
            )  # fmt: skip
        return allowed

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """The authorized operations, as the bit field of Kafka's responses."""
        return sum(
            1 << operation
            for operation in OPERATIONS_OF[resource_type]
            if self.allows(operation, resource_type, name, log_denied=False, log_allowed=False)
        )

    def _decide(self, key: tuple[int, int, str | None], name: str) -> bool:
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        allowed = self._decisions[key] = self._is_super or self._index.allows(
            str(self._principal), self.host, key[0], key[1], name,
            by_default=self._authorizer.allows_by_default,
        )  # fmt: skip
        return allowed

    def _renew(self) -> None:
        self._decisions.clear()
        self._index = self._authorizer.index
        self._principal = self._client.principal
        self._is_super = str(self._principal) in self._authorizer.super_users
