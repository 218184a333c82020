"""Check the guarantees of a cluster: record the operations of clients, and analyse the history.

    history = History()
    history.record(Operation(process="billing", kind=Kind.POLL, reads=[Read("bills-0", 7, "A-17")]))
    check(history).raise_if_bad()

`workload.run_workload` produces such a history, with concurrent producers, transactions and
consumers on any Kafka cluster; `faults.Nemesis` injects faults into a broker. On the command line:
`millstream check`.
"""

from __future__ import annotations

from millstream.testing.histories.checker import check
from millstream.testing.histories.history import (
    Ack,
    Acknowledgement,
    History,
    HistoryError,
    Kind,
    Operation,
    Outcome,
    Read,
    Send,
    incarnation,
)
from millstream.testing.histories.report import AnomaliesFound, Anomaly, Case, Report, Summary

__all__ = [
    "Ack",
    "Acknowledgement",
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
    "incarnation",
]
