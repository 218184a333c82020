"""Access control entries, and filters of them."""

from __future__ import annotations

import pytest

from millstream.security.acls import (
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

LITERAL = AclEntry(
    ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:a", "*", Operation.READ,
    Permission.ALLOW,
)  # fmt: skip
PREFIXED = LITERAL._replace(resource_name="ord", pattern_type=PatternType.PREFIXED)
EVERY = LITERAL._replace(resource_name="*")


@pytest.mark.parametrize(
    ("entry", "name", "applies"),
    [
        (LITERAL, "orders", True),
        (LITERAL, "orders2", False),
        (PREFIXED, "orders", True),
        (PREFIXED, "ord", True),
        (PREFIXED, "or", False),
        (EVERY, "anything", True),
        (EVERY._replace(pattern_type=PatternType.PREFIXED), "anything", False),
        (LITERAL._replace(pattern_type=PatternType.UNKNOWN), "orders", False),
    ],
)
def test_pattern_matches_a_name(entry: AclEntry, name: str, applies: bool) -> None:
    assert entry.applies_to(ResourceType.TOPIC, name) is applies
    assert not entry.applies_to(ResourceType.GROUP, name)


@pytest.mark.parametrize(
    ("wanted", "matched"),
    [
        (AclFilter(), {LITERAL, PREFIXED, EVERY}),
        (AclFilter(ResourceType.GROUP), set()),
        (AclFilter(ResourceType.TOPIC, "orders"), {LITERAL}),
        (AclFilter(ResourceType.TOPIC, "ord"), {PREFIXED}),
        (AclFilter(ResourceType.TOPIC, "ord", PatternType.LITERAL), set()),
        (AclFilter(ResourceType.TOPIC, None, PatternType.PREFIXED), {PREFIXED}),
        (AclFilter(ResourceType.TOPIC, "orders", PatternType.MATCH), {LITERAL, PREFIXED, EVERY}),
        (AclFilter(ResourceType.ANY, "x", PatternType.MATCH), {EVERY}),
        (AclFilter(ResourceType.ANY, None, PatternType.MATCH), {LITERAL, PREFIXED, EVERY}),
        (AclFilter(principal="User:b"), set()),
        (AclFilter(principal="User:a", host="*"), {LITERAL, PREFIXED, EVERY}),
        (AclFilter(host="127.0.0.1"), set()),
        (AclFilter(operation=Operation.WRITE), set()),
        (AclFilter(operation=Operation.READ, permission=Permission.DENY), set()),
    ],
)
def test_filter_matches_entries(wanted: AclFilter, matched: set[AclEntry]) -> None:
    assert {it for it in (LITERAL, PREFIXED, EVERY) if wanted.matches(it)} == matched
