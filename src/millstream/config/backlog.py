"""The backlog policy of a topic: what a slow consumer group causes, and from when on.

    retain   nothing, as in Kafka: retention deletes records whether they are read or not
    drop     the oldest records are deleted, so that the backlog stays within its bound
    hold     producers wait until the group has caught up
    reject   producers get POLICY_VIOLATION

The backlog of a partition is what the slowest of the groups that count has not committed, in bytes
or as the age of its oldest record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from millstream.config.topic import DROP, HOLD, NO_BOUND, REJECT, RETAIN, TopicConfig
from millstream.errors import ConfigError

POLICY = "millstream.backlog.policy"
BYTES = "millstream.backlog.bytes"
AGE = "millstream.backlog.ms"
GROUPS = "millstream.backlog.groups"
IDLE = "millstream.backlog.group.idle.ms"
EVERY_GROUP = ("*",)
_NEEDS_GROUPS = (HOLD, REJECT)


@dataclass(frozen=True)
class BacklogPolicy:
    """A policy other than retain."""

    kind: str
    bytes_max: int  # NO_BOUND: none
    age_ms_max: int  # NO_BOUND: none
    groups: tuple[str, ...]  # names and patterns
    idle_ms: int

    def counts(self, group_id: str) -> bool:
        """Whether a group counts, by its name."""
        return self._pattern.fullmatch(group_id) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Compiled once: every group is compared with it, every second."""
        return re.compile("|".join(_expression(self.groups)), re.DOTALL)

    @property
    def names(self) -> tuple[str, ...]:
        """The groups that are named, not matched by a pattern."""
        return tuple(group for group in self.groups if "*" not in group)

    def usage(self, size_bytes: int, age_ms: int) -> float:
        """How much of its bound a backlog uses; from 1 on, the policy applies."""
        used = 0.0
        if self.bytes_max != NO_BOUND:
            used = size_bytes / self.bytes_max
        if self.age_ms_max != NO_BOUND:
            used = max(used, age_ms / self.age_ms_max)
        return used


def policy_of(config: TopicConfig) -> BacklogPolicy | None:
    """The policy of a topic; None for retain."""
    kind = config.millstream_backlog_policy
    if kind == RETAIN:
        return None
    return BacklogPolicy(
        kind,
        config.millstream_backlog_bytes,
        config.millstream_backlog_ms,
        config.millstream_backlog_groups or EVERY_GROUP,
        config.millstream_backlog_group_idle_ms,
    )


def has_policy(overrides: Mapping[str, str]) -> bool:
    """Whether a topic with these settings of its own has a policy other than retain."""
    return overrides.get(POLICY, RETAIN) != RETAIN


def check_backlog(config: TopicConfig) -> None:
    """Refuse invalid combinations. Raises `ConfigError`."""
    kind = config.millstream_backlog_policy
    is_bounded = config.millstream_backlog_bytes != NO_BOUND or (
        config.millstream_backlog_ms != NO_BOUND
    )
    if kind == RETAIN:
        if is_bounded or config.millstream_backlog_groups:
            name = GROUPS if not is_bounded else BYTES if _has_bytes(config) else AGE
            raise ConfigError(
                f"{name} is set, but {POLICY} is retain: set that to drop, hold or reject, or "
                f"remove {name}, in the same request"
            )
        return
    if not is_bounded:
        raise ConfigError(f"{POLICY}={kind} needs a bound: set {BYTES} or {AGE}")
    if kind in _NEEDS_GROUPS and not config.millstream_backlog_groups:
        raise ConfigError(
            f"{POLICY}={kind} needs {GROUPS}: name the groups that producers wait for, so that a "
            "forgotten group stops nobody"
        )
    if "" in config.millstream_backlog_groups:
        raise ConfigError(f"{GROUPS} contains an empty name")
    if kind == DROP and not config.delete:
        raise ConfigError(
            f"{POLICY}=drop deletes records, and cleanup.policy does not: add delete to it"
        )


def _has_bytes(config: TopicConfig) -> bool:
    return config.millstream_backlog_bytes != NO_BOUND


def _expression(groups: Iterable[str]) -> list[str]:
    return [".*".join(map(re.escape, group.split("*"))) for group in groups]
