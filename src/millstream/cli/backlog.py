"""The backlog policy of a topic, as `millstream topic describe` shows it; see `admin.backlog`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from millstream.admin import backlog as backlogs
from millstream.admin.backlog import Extent, policy_in, with_sizes
from millstream.admin.moments import show_span
from millstream.cli.cluster import Cluster
from millstream.cli.output import print_pairs, print_rows


def describe_backlog(
    cluster: Cluster, topic: str, settings: dict[str, str], partitions: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The policy, and the slowest group of each partition; None for a topic that retains.

    `partitions` are rows with the partition's number, leader, start and end.
    """
    policy = policy_in(settings)
    if policy is None:
        return None
    rows = [Extent(it["partition"], it["leader"], it["start"], it["end"]) for it in partitions]
    protocol = cluster.protocol
    sized = with_sizes(protocol, topic, rows)
    return asdict(backlogs.describe_backlog(protocol, topic, policy, sized))


def show_backlog(backlog: dict[str, Any]) -> None:
    bounds = []
    if backlog["bytes_max"] is not None:
        bounds.append(f"{backlog['bytes_max']} bytes")
    if backlog["ms_max"] is not None:
        bounds.append(show_span(backlog["ms_max"]))
    print_pairs(
        [
            ("backlog policy", f"{backlog['policy']}, from {' or '.join(bounds)} on"),
            ("groups that count", ", ".join(backlog["groups"])),
        ]
    )
    rows = [
        row
        | {
            "age": show_span(row["age_ms"]),
            "share": "" if row["used"] is None else f"{row['used']:.0%}",
        }
        for row in backlog["partitions"]
    ]
    columns = {
        "partition": "PARTITION",
        "state": "STATE",
        "group": "SLOWEST GROUP",
        "records": "UNREAD",
        "bytes": "BYTES (ABOUT)",
        "age": "AGE",
        "share": "OF BOUND",
    }
    print_rows(rows, columns, empty="")
