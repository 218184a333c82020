"""Who may do what: decisions by the access control lists in the metadata.

Each connection has `Rights`, which keep its decisions: a client does the same things all the time.
They are forgotten when the lists change, which is with the metadata, and when the connection
authenticates as somebody else.

The audit records every decision about a resource that a request names.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from millstream.broker.security.brokers import broker_login
from millstream.config.authorization import super_users
from millstream.security.acl_index import AclIndex
from millstream.security.acls import OPERATIONS_OF, Operation, ResourceType, canonical_host
from millstream.security.principal import ANONYMOUS, USER_TYPE, Principal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from millstream.broker.metadata.store import MetadataStore
    from millstream.broker.security.audit import Audit
    from millstream.config.authorization import AuthorizationSettings
    from millstream.config.broker import BrokerConfig
    from millstream.coordination.cluster import ClusterImage
    from millstream.security.acls import AclEntry

logger = logging.getLogger("millstream.authorizer")

DECISIONS_MAX = 2_000  # of one connection; then all are forgotten
KEPT_NAME_LENGTH_MAX = 256  # longer names would take memory that their senders choose


class Authenticated(Protocol):
    """The client of a connection."""

    principal: Principal


class Authorizer:
    """The access control lists of the cluster, and the super users."""

    def __init__(
        self, metadata: MetadataStore, config: AuthorizationSettings, audit: Audit
    ) -> None:
        self.super_users = super_users(config.super_users)
        self.allows_by_default = config.allow_everyone_if_no_acl_found
        self.audit = audit
        self.acls: Mapping[UUID, AclEntry] = metadata.image.acls  # another object once changed
        self._indexed = self.acls
        self._index = AclIndex(self.acls.values())
        metadata.subscribe(self._follow)

    def _follow(self, before: ClusterImage, now: ClusterImage) -> None:
        self.acls = now.acls

    @property
    def index(self) -> AclIndex:
        """The lists as they are now. Built when it is needed: many changes in a row cost one."""
        if self._indexed is not self.acls:
            self._indexed = self.acls
            self._index = AclIndex(self.acls.values())
        return self._index

    def rights_of(self, client: Authenticated, host: str) -> Rights:
        """The rights of a connection, from this address."""
        return Rights(self, client, host)


def principal_of_brokers(config: BrokerConfig) -> Principal | None:
    """As whom brokers connect to each other. None if it is not in the settings: with TLS, the
    certificate names it."""
    listener = config.inter_broker_listener
    protocol = config.listener_protocols[listener]
    if not protocol.uses_sasl:
        return None if protocol.uses_tls else ANONYMOUS
    login = broker_login(config)
    return None if login is None else Principal(USER_TYPE, login[0])


def warn_about_brokers(config: BrokerConfig, authorizer: Authorizer) -> None:
    """Brokers that are no super users refuse each other's requests."""
    principal = principal_of_brokers(config)
    if principal is not None and str(principal) not in authorizer.super_users:
        logger.warning(
            "brokers connect to each other as %s (listener %s), which is not in super.users: they "
            "will refuse each other's requests, so that replication, transactions and share groups "
            "fail. Add it to super.users%s",
            principal,
            config.inter_broker_listener,
            ", after the listener is protected" if principal == ANONYMOUS else "",
        )


class Rights:
    """What the client of one connection may do."""

    __slots__ = (
        "_acls",
        "_audit",
        "_authorizer",
        "_client",
        "_decisions",
        "_index",
        "_is_super",
        "_principal",
        "_writable",
        "host",
    )

    def __init__(self, authorizer: Authorizer, client: Authenticated, host: str) -> None:
        self._authorizer = authorizer
        self._audit = authorizer.audit
        self._client = client
        self.host = canonical_host(host)
        self._decisions: dict[tuple[int, int, str | None], bool] = {}
        self._writable: set[str] = set()  # of them, topics that it may write
        self._renew()

    @property
    def identity(self) -> tuple[str, str]:
        """What decisions depend on, besides the lists."""
        return str(self._client.principal), self.host

    @property
    def version(self) -> object:
        """Another object when decisions may have changed."""
        return self._authorizer.acls

    @property
    def records_allowed(self) -> bool:
        """Whether the audit records what is allowed, too."""
        return self._audit.wants_allowed

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
        if self._acls is not self._authorizer.acls or self._principal is not self._client.principal:
            self._renew()
        allowed = self._decisions.get((operation, resource_type, name))
        if allowed is None:
            allowed = self._decide((operation, resource_type, name), name)
        audit = self._audit
        if allowed and not audit.wants_allowed:
            return True
        if log_allowed if allowed else log_denied:
            who = str(self._principal), self.host
            audit.decided(*who, operation, resource_type, name, allowed=allowed)
        return allowed

    def may_write(self, topic: str, transactional_id: str | None) -> bool:
        """What every Produce request asks, at the cost of a few comparisons."""
        if (
            topic in self._writable
            and transactional_id is None
            and self._acls is self._authorizer.acls
            and self._principal is self._client.principal
            and not self._audit.wants_allowed
        ):
            return True
        if transactional_id is not None and not self.allows(
            Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            return False
        if not self.allows(Operation.WRITE, ResourceType.TOPIC, topic):
            return False
        if len(self._writable) < DECISIONS_MAX and len(topic) <= KEPT_NAME_LENGTH_MAX:
            self._writable.add(topic)
        return True

    def allows_somewhere(self, operation: int, resource_type: int) -> bool:
        """Whether the client may do this with at least one resource of the type."""
        authorizer = self._authorizer
        if self._acls is not authorizer.acls or self._principal is not self._client.principal:
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
        allowed = self._is_super or self._index.allows(
            str(self._principal), self.host, key[0], key[1], name,
            by_default=self._authorizer.allows_by_default,
        )  # fmt: skip
        if len(name) <= KEPT_NAME_LENGTH_MAX:
            self._decisions[key] = allowed
        return allowed

    def _renew(self) -> None:
        self._decisions.clear()
        self._writable.clear()
        self._acls = self._authorizer.acls
        self._index = self._authorizer.index
        self._principal = self._client.principal
        self._is_super = str(self._principal) in self._authorizer.super_users
