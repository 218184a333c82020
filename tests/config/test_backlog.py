"""The backlog policy of a topic: which settings go together, and which groups count."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from millstream.config.backlog import BacklogPolicy, has_policy, policy_of
from millstream.config.broker import BrokerConfig, check_topic
from millstream.errors import ConfigError

PREFIX = "millstream.backlog."


def settings(**values: object) -> dict[str, str]:
    return {PREFIX + name.replace("_", "."): str(value) for name, value in values.items()}


def policy(**values: object) -> BacklogPolicy | None:
    config = BrokerConfig.from_values({}).topic_config(settings(**values))
    check_topic(config)
    return policy_of(config)


def test_a_topic_retains_by_default() -> None:
    assert policy() is None
    assert policy(policy="retain") is None


def test_a_policy_has_bounds_and_groups() -> None:
    assert policy(policy="hold", bytes=1000, groups="billing,audit-*") == BacklogPolicy(
        "hold", 1000, -1, ("billing", "audit-*"), 600_000
    )
    assert policy(policy="drop", ms=5000, group_idle_ms=1) == BacklogPolicy(
        "drop", -1, 5000, ("*",), 1
    )


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"policy": "hold", "bytes": 1}, "policy=hold needs millstream.backlog.groups"),
        ({"policy": "reject", "ms": 1}, "policy=reject needs millstream.backlog.groups"),
        ({"policy": "hold", "groups": "a"}, "policy=hold needs a bound"),
        ({"policy": "drop"}, "policy=drop needs a bound"),
        ({"bytes": 1}, "millstream.backlog.bytes is set, but"),
        ({"ms": 1}, "millstream.backlog.ms is set, but"),
        ({"groups": "a"}, "millstream.backlog.groups is set, but"),
        ({"policy": "hold", "bytes": 1, "groups": "a,,b"}, "contains an empty name"),
        ({"policy": "hold", "bytes": 0, "groups": "a"}, "Value must be at least 1"),
        ({"policy": "block", "bytes": 1, "groups": "a"}, "one of: retain, drop, hold, reject"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    values: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        policy(**values)


def test_records_of_a_compacted_topic_are_not_dropped() -> None:
    config = BrokerConfig.from_values({}).topic_config(
        settings(policy="drop", bytes=1) | {"cleanup.policy": "compact"}
    )
    with pytest.raises(ConfigError, match="add delete"):
        check_topic(config)


def test_pattern_is_compiled_once_for_each_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_ = re.compile

    def counting(pattern: str, flags: int = 0) -> re.Pattern[str]:
        compiled.append(pattern)
        return compile_(pattern, flags)

    monkeypatch.setattr(re, "compile", counting)
    policies = [BacklogPolicy("hold", 1, -1, (f"g{number}-*",), 1) for number in range(300)]
    for _ in range(2):
        assert [it.counts("g7-a") for it in policies].index(True) == 7
    assert len(compiled) == 300


def test_groups_are_named_or_match_a_pattern() -> None:
    found = policy(policy="hold", bytes=1, groups="billing,audit-*,*.test")
    assert found is not None
    for group in ("billing", "audit-", "audit-2", "x.test"):
        assert found.counts(group), group
    for group in ("billing2", "Billing", "audit", "xtest", ""):
        assert not found.counts(group), group


def test_usage_is_that_of_the_bound_that_is_nearer() -> None:
    both = BacklogPolicy("hold", 1000, 200, ("a",), 1)
    assert both.usage(500, 10) == 0.5
    assert both.usage(500, 150) == 0.75
    assert replace(both, bytes_max=-1).usage(10**9, 100) == 0.5
    assert replace(both, age_ms_max=-1).usage(100, 10**9) == 0.1


def test_the_policy_is_seen_without_parsing_the_settings() -> None:
    assert has_policy({"millstream.backlog.policy": "hold"})
    assert not has_policy({"millstream.backlog.policy": "retain"})
    assert not has_policy({"retention.ms": "1"})
