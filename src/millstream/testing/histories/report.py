"""The checker's report: anomalies by name, with the operations involved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from millstream.errors import MillstreamError

CASES_SHOWN = 5


class Anomaly(StrEnum):
    """Anomalies; the values are their display names."""

    ABORTED_READ = "aborted read"
    PRECOMMITTED_READ = "read before commit"
    TORN_TRANSACTION = "torn transaction"
    LOST = "lost record"
    UNSEEN = "unseen at the end"
    DUPLICATED = "duplicated record"
    INCONSISTENT_OFFSET = "inconsistent offset"
    UNKNOWN_VALUE = "value nobody sent"
    DELETED_TOPIC = "deleted topic's record"
    SKIPPED_POLL = "skipped poll"
    NON_MONOTONIC_POLL = "non-monotonic poll"
    NON_MONOTONIC_SEND = "non-monotonic send"
    PROCESSED_TWICE = "processed twice"
    NOT_PROCESSED = "passed over by a group"
    VERSION_TWICE = "version appended twice"
    VERSION_ORDER = "versions out of order"
    UNFOUNDED_REFUSAL = "refused without a reason"
    ACKNOWLEDGED_TWICE = "acknowledged twice"
    NOT_SHARED = "missed by a share group"
    EARLY_RETRY = "retried too early"


class Case(NamedTuple):
    """One anomaly: where, what happened, and the operations involved, by number."""

    anomaly: Anomaly
    partition: str
    explanation: str
    operations: tuple[int, ...]


class Summary(NamedTuple):
    """How much was checked, as counts."""

    operations: int
    processes: int
    sent: int
    acknowledged: int
    committed: int
    aborted: int
    undecided: int
    read: int
    groups: int
    settled: int  # accepted or rejected by share groups
    released: int  # by share groups


class AnomaliesFound(MillstreamError, AssertionError):
    """The history has anomalies; the message is the report."""


@dataclass(frozen=True)
class Report:
    """The result for one history: how much was checked, and every anomaly with its evidence."""

    summary: Summary
    anomalies: Sequence[Case]

    @property
    def is_good(self) -> bool:
        """Whether there is no anomaly."""
        return not self.anomalies

    @property
    def counts(self) -> dict[Anomaly, int]:
        """How many cases of each anomaly there are; the absent ones are left out."""
        return dict(Counter(case.anomaly for case in self.anomalies))

    def raise_if_bad(self) -> None:
        """Raise `AnomaliesFound` if there is an anomaly."""
        if self.anomalies:
            raise AnomaliesFound(str(self))

    def __str__(self) -> str:
        summary, counts = self.summary, self.counts
        lines = [
            f"{summary.operations:,} operations by {summary.processes:,} clients",
            f"{summary.sent:,} records sent, {summary.acknowledged:,} of them acknowledged; "
            f"read {summary.read:,} times, by {summary.groups:,} groups among others",
            f"{summary.committed + summary.aborted + summary.undecided:,} transactions: "
            f"{summary.committed:,} committed, {summary.aborted:,} aborted, "
            f"{summary.undecided:,} without an answer",
            f"{summary.settled:,} records settled by share groups, {summary.released:,} released",
            "",
        ]
        for anomaly in Anomaly:
            lines.append(f"{anomaly:<24}{counts.get(anomaly, 0):>8,}")
            lines += self._examples(anomaly)
        lines += ["", self.verdict]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        if self.is_good:
            return "no anomalies"
        kinds = len(self.counts)
        return f"{len(self.anomalies):,} anomalies of {kinds} {'kind' if kinds == 1 else 'kinds'}"

    def _examples(self, anomaly: Anomaly) -> list[str]:
        cases = [case for case in self.anomalies if case.anomaly is anomaly]
        lines = [f"    {case.partition}: {case.explanation}" for case in cases[:CASES_SHOWN]]
        if len(cases) > CASES_SHOWN:
            lines.append(f"    and {len(cases) - CASES_SHOWN:,} more")
        return lines
