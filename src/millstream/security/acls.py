"""Access control entries (ACLs) and filters of them, with Kafka's names and numbers.

An entry allows or denies a principal one operation on the resources that a pattern matches:

    User:alice may READ, from every host, the topics whose names begin with "orders."

The decision by many entries is in `acl_index`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

CLUSTER_NAME = "kafka-cluster"  # the only resource of its type
ANY_NAME = "*"  # as a literal pattern: all resources of the type
ANY_HOST = "*"
ANY_USER = "User:*"


class ResourceType(IntEnum):
    """What is protected."""

    UNKNOWN = 0
    ANY = 1  # filters only
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an entry's resource name is compared."""

    UNKNOWN = 0
    ANY = 1  # filters only: entries of either type
    MATCH = 2  # filters only: entries that apply to the resource with this name
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done with the resource."""

    UNKNOWN = 0
    ANY = 1  # filters only
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether an entry allows or denies."""

    UNKNOWN = 0
    ANY = 1  # filters only
    DENY = 2
    ALLOW = 3


_COMMON = (Operation.DESCRIBE, Operation.DELETE, Operation.ALTER)
_CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)

OPERATIONS_OF: Mapping[ResourceType, tuple[Operation, ...]] = MappingProxyType(
    {
        ResourceType.TOPIC: (
            Operation.READ, Operation.WRITE, Operation.CREATE, *_COMMON, *_CONFIGS,
        ),
        ResourceType.GROUP: (
            Operation.READ, Operation.DESCRIBE, Operation.DELETE, *_CONFIGS,
        ),
        ResourceType.CLUSTER: (
            Operation.CREATE, Operation.CLUSTER_ACTION, *_CONFIGS, Operation.IDEMPOTENT_WRITE,
            Operation.ALTER, Operation.DESCRIBE,
        ),
        ResourceType.TRANSACTIONAL_ID: (
            Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT,
        ),
        ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
        ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
    }
)  # fmt: skip
"""The operations that entries on resources of a type may name, besides ALL."""


def canonical_host(host: str) -> str:
    """The address as entries and connections are compared: one form of IPv6 addresses, of which
    Java and Python write different ones. Other text is left as it is."""
    if ":" not in host:
        return host
    from ipaddress import IPv6Address

    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)


class AclEntry(NamedTuple):
    """One entry. The numbers are those of the enumerations above, or ones of a later Kafka."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str  # type:name; User:* is everybody
    host: str  # a textual address; * is every host
    operation: int
    permission: int

    def applies_to(self, resource_type: int, name: str) -> bool:
        """Whether its pattern matches this resource."""
        if self.resource_type != resource_type:
            return False
        if self.pattern_type == PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.pattern_type == PatternType.LITERAL and self.resource_name in (name, ANY_NAME)

    @property
    def access_fields(self) -> dict[str, str | int]:
        """Who may or may not do what, as the messages of Kafka have it."""
        return {
            "principal": self.principal,
            "host": self.host,
            "operation": self.operation,
            "permission_type": self.permission,
        }


class AclFilter(NamedTuple):
    """Which entries are meant. None matches every name, principal or host."""

    resource_type: int = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    @property
    def names_one_entry(self) -> bool:
        """Whether it can match only the entry with the same fields."""
        return (
            None not in (self.resource_name, self.principal, self.host)
            and self.resource_type != ResourceType.ANY
            and self.pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
            and self.operation != Operation.ANY
            and self.permission != Permission.ANY
        )

    def matches(self, entry: AclEntry) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, entry.resource_type)
            and self._matches_name(entry)
            and self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )

    def _matches_name(self, entry: AclEntry) -> bool:
        if self.pattern_type == PatternType.MATCH:
            return self.resource_name is None or entry.applies_to(
                entry.resource_type, self.resource_name
            )
        return self.pattern_type in (PatternType.ANY, entry.pattern_type) and (
            self.resource_name in (None, entry.resource_name)
        )
