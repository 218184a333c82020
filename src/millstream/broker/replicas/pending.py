"""Appends that wait until they are flushed here, or on every in-sync replica."""

from __future__ import annotations

from millstream.broker._core import PendingAppend

__all__ = ["ACKS_ALL", "ACKS_LEADER", "ACKS_NONE", "PendingAppend"]

ACKS_ALL = -1
ACKS_NONE = 0
ACKS_LEADER = 1
