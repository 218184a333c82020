"""Decisions by access control entries: Kafka's rules, and a scan of all entries to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.security.acl_index import AclIndex
from millstream.security.acls import (
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.drawing import draws

TOPIC = ResourceType.TOPIC
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED

NAMES = ["a", "ab", "abc", "abd", "b", "*"]
PRINCIPALS = ["User:a", "User:b", "User:*", "Group:a"]
HOSTS = ["*", "10.0.0.1", "10.0.0.2"]

entries = st.builds(
    AclEntry,
    resource_type=st.sampled_from([TOPIC, ResourceType.GROUP]),
    resource_name=st.sampled_from(NAMES),
    pattern_type=st.sampled_from([LITERAL, PREFIXED]),
    principal=st.sampled_from(PRINCIPALS),
    host=st.sampled_from(HOSTS),
    operation=st.sampled_from([it for it in Operation if it >= Operation.ALL]),
    permission=st.sampled_from([ALLOW, ALLOW, ALLOW, DENY]),
)
operations = st.sampled_from([it for it in Operation if it > Operation.ALL])


def scan(
    acls: Sequence[AclEntry], principal: str, host: str, operation: Operation, name: str
) -> bool | None:
    """The decision by looking at all entries, one rule after the other; None: no entry is on it."""
    on_it = [entry for entry in acls if entry.applies_to(TOPIC, name)]
    if not on_it:
        return None
    mine = [it for it in on_it if it.principal in (principal, "User:*") and it.host in ("*", host)]
    if any(it.permission == DENY and it.operation in (Operation.ALL, operation) for it in mine):
        return False
    sufficient = {Operation.ALL, operation}
    if operation == Operation.DESCRIBE:
        sufficient |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if operation == Operation.DESCRIBE_CONFIGS:
        sufficient |= {Operation.ALTER_CONFIGS}
    return any(it.permission == ALLOW and it.operation in sufficient for it in mine)


@settings(max_examples=draws(300))
@given(
    st.lists(entries, max_size=12),
    st.sampled_from(["User:a", "User:b", "User:c"]),
    st.sampled_from(HOSTS[1:]),
    operations,
    st.sampled_from([*NAMES[:-1], "abcd", "x"]),
    st.booleans(),
)
def test_decision_is_that_of_a_scan(
    acls: list[AclEntry],
    principal: str,
    host: str,
    operation: Operation,
    name: str,
    by_default: bool,
) -> None:
    expected = scan(acls, principal, host, operation, name)
    decided = AclIndex(acls).allows(principal, host, operation, TOPIC, name, by_default=by_default)
    assert decided is (by_default if expected is None else expected)


def entry(**changes: object) -> AclEntry:
    base = AclEntry(TOPIC, "t", LITERAL, "User:a", "*", Operation.READ, ALLOW)
    return base._replace(**changes)  # type: ignore[arg-type]


def allows(*acls: AclEntry, operation: Operation = Operation.READ, host: str = "10.0.0.1") -> bool:
    return AclIndex(acls).allows("User:a", host, operation, TOPIC, "t")


@pytest.mark.parametrize(
    ("acls", "operation", "is_allowed"),
    [
        ([], Operation.READ, False),
        ([entry()], Operation.READ, True),
        ([entry()], Operation.WRITE, False),
        ([entry()], Operation.DESCRIBE, True),
        ([entry(operation=Operation.CREATE)], Operation.DESCRIBE, False),
        ([entry(operation=Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, True),
        ([entry(operation=Operation.ALL)], Operation.ALTER_CONFIGS, True),
        ([entry(), entry(permission=DENY)], Operation.READ, False),
        ([entry(), entry(permission=DENY)], Operation.DESCRIBE, True),
        ([entry(), entry(permission=DENY, operation=Operation.ALL)], Operation.DESCRIBE, False),
        ([entry(), entry(permission=DENY, principal="User:b")], Operation.READ, True),
        ([entry(), entry(permission=DENY, host="10.0.0.2")], Operation.READ, True),
        ([entry(principal="User:*")], Operation.READ, True),
        ([entry(principal="User:b")], Operation.READ, False),
        ([entry(resource_name="*")], Operation.READ, True),
        ([entry(resource_name="*", pattern_type=PREFIXED)], Operation.READ, False),
        ([entry(host="10.0.0.1")], Operation.READ, True),
        ([entry(host="10.0.0.0")], Operation.READ, False),
        ([entry(permission=Permission.UNKNOWN), entry()], Operation.READ, False),
    ],
)  # fmt: skip
def test_rules(acls: list[AclEntry], operation: Operation, is_allowed: bool) -> None:
    assert allows(*acls, operation=operation) is is_allowed


def test_default_counts_only_where_nobody_has_an_entry() -> None:
    index = AclIndex([entry(principal="User:b")])
    may_read = ("User:a", "10.0.0.1", Operation.READ, TOPIC)
    assert not index.allows(*may_read, "t", by_default=True)
    assert index.allows(*may_read, "u", by_default=True)
    assert not index.allows(*may_read, "u")


@pytest.mark.parametrize(
    ("acls", "is_allowed"),
    [
        ([], False),
        ([entry()], True),
        ([entry(operation=Operation.WRITE)], False),
        ([entry(operation=Operation.ALL)], True),
        ([entry(), entry(permission=DENY)], False),
        ([entry(), entry(permission=DENY, resource_name="*")], False),
        ([entry(resource_name="tu"), entry(permission=DENY)], True),
        ([entry(resource_name="tu"), entry(permission=DENY, pattern_type=PREFIXED)], False),
        ([entry(pattern_type=PREFIXED), entry(permission=DENY)], True),
        ([entry(pattern_type=PREFIXED), entry(permission=DENY, resource_name="tu")], True),
        ([entry(resource_name="*"), entry(permission=DENY, pattern_type=PREFIXED)], True),
        ([entry(host="10.0.0.9")], False),
        ([entry(resource_type=ResourceType.GROUP)], False),
    ],
)  # fmt: skip
def test_right_to_some_resource_of_a_type(acls: list[AclEntry], is_allowed: bool) -> None:
    index = AclIndex(acls)
    assert index.allows_somewhere("User:a", "10.0.0.1", Operation.READ, TOPIC) is is_allowed


def test_right_to_some_resource_by_default() -> None:
    reading = ("User:a", "10.0.0.1", Operation.READ, TOPIC)
    assert AclIndex([entry(permission=DENY)]).allows_somewhere(*reading, by_default=True)
    denied = AclIndex([entry(permission=DENY, resource_name="*")])
    assert not denied.allows_somewhere(*reading, by_default=True)


@given(st.lists(entries, max_size=12), operations)
def test_right_to_one_of_these_names_is_a_right_to_some_resource(
    acls: list[AclEntry], operation: Operation
) -> None:
    """Kafka's search does not look at implied operations, so DESCRIBE may be missed."""
    if operation in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS):
        return
    index = AclIndex(acls)
    named = any(index.allows("User:a", "10.0.0.1", operation, TOPIC, name) for name in NAMES[:-1])
    if named:
        assert index.allows_somewhere("User:a", "10.0.0.1", operation, TOPIC)


def test_decision_among_many_entries_looks_at_few() -> None:
    """10,000 entries of others, on names, prefixes and on everything, change no decision."""
    others = [
        entry(resource_name=f"t{number}", principal=f"User:{number}") for number in range(4_000)
    ]
    others += [
        entry(resource_name=f"p{number}.", pattern_type=PREFIXED, principal=f"User:{number}")
        for number in range(3_000)
    ]
    others += [entry(resource_name="*", principal=f"User:{number}") for number in range(3_000)]
    index = AclIndex([*others, entry()])
    assert index.allows("User:a", "10.0.0.1", Operation.READ, TOPIC, "t")
    assert not index.allows("User:a", "10.0.0.1", Operation.READ, TOPIC, "t1")
    assert index.allows("User:7", "10.0.0.1", Operation.READ, TOPIC, "p7.orders")
