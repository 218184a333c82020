"""Reports: what people read, and what programs ask."""

from __future__ import annotations

import pytest

from millstream.testing.histories import AnomaliesFound, Anomaly, Case, Report, Summary

SUMMARY = Summary(
    operations=1234,
    processes=5,
    sent=100,
    acknowledged=98,
    committed=7,
    aborted=2,
    undecided=1,
    read=300,
    groups=2,
    settled=40,
    released=3,
)
LOST = [Case(Anomaly.LOST, "orders-1", f"value {n} was lost", (n,)) for n in range(7)]


def test_good_report_raises_nothing_and_says_how_much_was_checked() -> None:
    report = Report(SUMMARY, [])
    report.raise_if_bad()
    assert report.is_good
    assert "1,234 operations by 5 clients" in str(report)
    assert "10 transactions: 7 committed, 2 aborted, 1 without an answer" in str(report)
    assert "40 records settled by share groups, 3 released" in str(report)
    assert str(report).endswith("no anomalies")


def test_bad_report_raises_itself() -> None:
    report = Report(SUMMARY, LOST)
    assert report.counts == {Anomaly.LOST: 7}
    with pytest.raises(AnomaliesFound) as raised:
        report.raise_if_bad()
    assert str(raised.value) == str(report)


def test_report_shows_some_cases_of_each_anomaly() -> None:
    lines = str(Report(SUMMARY, LOST)).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("lost record"))
    assert lines[start].split() == ["lost", "record", "7"]
    assert lines[start + 1] == "    orders-1: value 0 was lost"
    assert lines[start + 6] == "    and 2 more"
    assert lines[-1] == "7 anomalies of 1 kind"


def test_report_lists_every_anomaly_even_if_it_was_not_found() -> None:
    assert all(f"\n{anomaly} " in str(Report(SUMMARY, [])) for anomaly in Anomaly)
