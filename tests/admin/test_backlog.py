"""The state of a backlog policy, from what a client knows; `tests/cli/test_backlog.py` and the page
of a topic ask a broker."""

from __future__ import annotations

from millstream.admin.backlog import (
    PartitionBacklog,
    policy_in,
    state_of,
    unread_bytes,
    used_of,
)
from millstream.config.backlog import BacklogPolicy

PREFIX = "millstream.backlog."
POLICY = BacklogPolicy("hold", 1000, 500, ("g",), 1)


def state(size: int | None, age_ms: int, *, has_members: bool = True) -> str:
    return state_of(POLICY, used_of(POLICY, size, age_ms), has_members=has_members)


def test_state_is_unknown_where_the_size_is() -> None:
    assert unread_bytes(5, 10, None) is None
    assert unread_bytes(0, 10, None) == 0
    assert used_of(POLICY, None, 499) is None
    assert state(None, 499) == "unknown"
    assert state(None, 500) == "holds producers"
    assert state(999, 499) == "within"
    assert state(1000, 0, has_members=False) == "holds producers unless idle"


def test_only_a_policy_that_applies_is_applied() -> None:
    for text, is_applied in (("within", False), ("unknown", False), ("drops records", True)):
        assert PartitionBacklog(0, "g", 1, 1, 1, 1.0, text).is_applied is is_applied


def test_topics_of_other_brokers_have_no_policy() -> None:
    assert policy_in({"retention.ms": "1"}) is None
    assert policy_in({PREFIX + "policy": "retain"}) is None


def test_policy_without_groups_counts_all() -> None:
    given = {"policy": "drop", "bytes": "5000", "ms": "-1", "groups": "", "group.idle.ms": "1"}
    policy = policy_in({PREFIX + name: value for name, value in given.items()})
    assert policy is not None
    assert (policy.kind, policy.bytes_max, policy.counts("any")) == ("drop", 5000, True)
