"""Decisions by access control entries, as Apache Kafka's StandardAuthorizer makes them.

All entries whose pattern matches the resource count: literal ones with its name, literal `*`, and
prefixed ones. In this order:

1. an entry that denies the operation to the principal or to `User:*`, at the host or at `*`: denied
2. one that allows it: allowed. ALL is every operation. To allow READ, WRITE, DELETE or ALTER is to
   allow DESCRIBE, and to allow ALTER_CONFIGS is to allow DESCRIBE_CONFIGS; to deny them is not
3. no entry at all, for anybody, matches the resource: as `allow.everyone.if.no.acl.found` says
4. otherwise denied

Super users are not asked about here.

The entries are indexed by type, pattern and principal, so that a decision looks at few of them. A
prefix is found by its length: there are few different ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millstream.security.acls import (
    ANY_HOST,
    ANY_NAME,
    ANY_USER,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    canonical_host,
)

_ByPrincipal = dict[str, list[AclEntry]]

_IMPLIED = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""By operation, the operations that allow it when they are allowed."""


class AclIndex:
    """Entries, for decisions. Immutable."""

    def __init__(self, entries: Iterable[AclEntry] = ()) -> None:
        self._literal: dict[tuple[int, str], _ByPrincipal] = {}
        self._prefixed: dict[tuple[int, str], _ByPrincipal] = {}
        lengths: dict[int, set[int]] = {}
        for entry in entries:
            key = (entry.resource_type, entry.resource_name)
            if entry.pattern_type == PatternType.LITERAL:
                patterns = self._literal
            elif entry.pattern_type == PatternType.PREFIXED:
                patterns = self._prefixed
                lengths.setdefault(entry.resource_type, set()).add(len(entry.resource_name))
            else:
                continue
            if ":" in entry.host:
                entry = entry._replace(host=canonical_host(entry.host))
            patterns.setdefault(key, {}).setdefault(entry.principal, []).append(entry)
        self._lengths = {kind: sorted(found) for kind, found in lengths.items()}

    def allows(
        self,
        principal: str,
        host: str,
        operation: int,
        resource_type: int,
        name: str,
        *,
        by_default: bool = False,
    ) -> bool:
        """Whether the principal may do this, at a host in the form of `canonical_host`.
        `by_default` counts if no entry is on the resource."""
        is_allowed = False
        has_entries = False
        for entries in self._on(resource_type, name):
            has_entries = True
            for user in (principal, ANY_USER):
                for entry in entries.get(user, ()):
                    decision = _decision(entry, host, operation)
                    if decision is False:
                        return False
                    is_allowed = is_allowed or decision is True
        return is_allowed or (by_default and not has_entries)

    def allows_somewhere(
        self,
        principal: str,
        host: str,
        operation: int,
        resource_type: int,
        *,
        by_default: bool = False,
    ) -> bool:
        """Whether the principal may do this with at least one resource of the type, existing or
        not. Kafka's `authorizeByResourceType`."""
        # Kafka asks about a resource of this name first, for the sake of super users.
        if self.allows(
            principal, host, operation, resource_type, "hardcode", by_default=by_default
        ):
            return True
        allowed: list[AclEntry] = []
        denied: set[tuple[int, str]] = set()
        for entry in self._of(resource_type, principal):
            if entry.host not in (ANY_HOST, host):
                continue
            if entry.operation not in (Operation.ALL, operation):
                continue
            if entry.permission == Permission.ALLOW:
                allowed.append(entry)
            else:
                denied.add((entry.pattern_type, entry.resource_name))
        if (PatternType.LITERAL, ANY_NAME) in denied:
            return False
        return any(not _is_dominated(entry, denied) for entry in allowed)

    def _on(self, resource_type: int, name: str) -> Iterator[_ByPrincipal]:
        """The entries of each pattern that matches."""
        literal, prefixed = self._literal, self._prefixed
        for key in ((resource_type, name), (resource_type, ANY_NAME)):
            found = literal.get(key)
            if found is not None:
                yield found
        for length in self._lengths.get(resource_type, ()):
            if length > len(name):
                return
            found = prefixed.get((resource_type, name[:length]))
            if found is not None:
                yield found

    def _of(self, resource_type: int, principal: str) -> Iterator[AclEntry]:
        """All entries of a type for this principal."""
        for patterns in (self._literal, self._prefixed):
            for (kind, _), entries in patterns.items():
                if kind == resource_type:
                    for user in {principal, ANY_USER}:
                        yield from entries.get(user, ())


def _decision(entry: AclEntry, host: str, operation: int) -> bool | None:
    """What the entry says of the operation at the host; None: nothing."""
    if entry.host not in (ANY_HOST, host):
        return None
    is_allow = entry.permission == Permission.ALLOW
    if entry.operation in (Operation.ALL, operation):
        return is_allow
    if is_allow and operation in _IMPLIED and entry.operation in _IMPLIED[Operation(operation)]:
        return True
    return None


def _is_dominated(allowed: AclEntry, denied: set[tuple[int, str]]) -> bool:
    """Whether everything that the entry's pattern matches is denied."""
    name = allowed.resource_name
    if allowed.pattern_type == PatternType.LITERAL:
        if name == ANY_NAME:
            return False
        if (PatternType.LITERAL, name) in denied:
            return True
    return any((PatternType.PREFIXED, name[:end]) in denied for end in range(1, len(name) + 1))
