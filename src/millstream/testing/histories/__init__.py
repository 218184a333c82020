"""Did the cluster keep its word? Record what clients did and saw, and let the checker judge it.

    history = History()
    history.record(Operation(process="billing", kind=Kind.POLL, reads=[Read("bills-0", 7, "A-17")]))
    check(history).raise_if_bad()

`workload.run_workload` makes such a history itself, with concurrent producers, transactions and
consumers on any Kafka cluster; `faults.Nemesis` breaks a broker meanwhile. On the command line:
`millstream check`.
"""

from __future__ import annotations

from millstream.testing.histories.checker import check
from millstream.testing.histories.history import (
    History,
    HistoryError,
    Kind,
    Operation,
    Outcome,
    Read,
    Send,
)
from millstream.testing.histories.report import AnomaliesFound, Anomaly, Case, Report, Summary

__all__ = [
    "AnomaliesFound",
    "Anomaly",
    "Case",
    "History",
    "HistoryError",
    "Kind",
    "Operation",
    "Outcome",
    "Read",
    "Report",
    "Send",
    "Summary",
    "check",
]
