"""Share groups as `millstream group` shows them: members, backlog, and what is in flight."""

from __future__ import annotations

from typing import Any

from millstream.admin.share_groups import describe_share_group, share_partitions, total
from millstream.cli.cluster import Cluster
from millstream.cli.output import console, print_json, print_pairs, print_rows


def show_share_group(cluster: Cluster, group: str, as_json: bool) -> None:
    found = describe_share_group(cluster.protocol, group)
    partitions = share_partitions(cluster.protocol, group)
    held_by: dict[str, int] = {}
    for partition in partitions:
        for member, records in partition.holders.items():
            held_by[member] = held_by.get(member, 0) + records
    is_live = any(it.is_live for it in partitions)
    members = [
        {
            "member": member.member,
            "client": member.client,
            "host": member.host,
            "partitions": [f"{topic}[{index}]" for topic, index in member.partitions],
            "held": held_by.get(member.member, 0) if is_live else None,
        }
        for member in found.members
    ]
    facts = {
        "group": group,
        "state": found.state,
        "type": "share",
        "assignor": found.assignor,
        "coordinator": found.coordinator,
        "backlog": sum(it.backlog or 0 for it in partitions),
        "held": total(it.held for it in partitions),
        "delayed": total(it.delayed for it in partitions),
    }
    rows = [it.as_row() for it in partitions]
    if as_json:
        print_json(facts | {"members": members, "partitions": rows})
        return
    print_pairs(facts.items())
    console().print()
    columns = {"client": "CLIENT", "host": "HOST", "held": "HELD", "partitions": "PARTITIONS"}
    print_rows(members, columns, empty="no members", title="Members")
    show_partitions(rows)


def show_partitions(rows: list[dict[str, Any]]) -> None:
    shown = [
        row | {"deliveries": "  ".join(f"{n}x: {it}" for n, it in row["deliveries"].items())}
        for row in rows
    ]
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "start": "START",
        "end": "END",
        "backlog": "BACKLOG",
        "held": "HELD",
        "delayed": "DELAYED",
        "released": "RELEASED",
        "dying": "DYING",
        "deliveries": "DELIVERED",
    }
    print_rows(shown, columns, empty="nothing consumed yet", title="Partitions")
