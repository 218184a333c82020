"""Access control: CPU time of the broker for a one-record request with and without an authorizer.

Two brokers of the same build get the same pre-encoded Produce requests, in turns of a few hundred.
One of them has an authorizer and 1,000 access control entries: names and prefixes of others, and
one that allows the client to write. The client is no super user. Apache Kafka's pair is measured
in the same way, if it is a target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchmarks.apache_kafka import KafkaTarget
from benchmarks.bench_metrics import BLOCK, BLOCKS, ROUNDS, Lane
from benchmarks.measurement import Measurement
from benchmarks.targets import MillstreamTarget, Scale, Target, running
from millstream.config.authorization import STANDARD_AUTHORIZER

ON, OFF = "authorizer", "no authorizer"
ENTRIES = 1_000
SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "allow.everyone.if.no.acl.found": "true",  # nobody else could create the entries
}


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    for kind in (MillstreamTarget, KafkaTarget):
        if not any(isinstance(target, kind) for target in targets):
            continue
        with ExitStack() as stack:
            checked, plain = kind(), kind()
            checked.settings = {**checked.settings, **SETTINGS}
            stack.enter_context(running(checked))
            stack.enter_context(running(plain))
            create_entries(checked)
            for name, acks in (("acks=1", 1), ("acks=all", -1)):
                title = f"{checked.name}: one-record request, {name}"
                yield compare(title, checked, plain, acks, scale)


def compare(name: str, checked: Target, plain: Target, acks: int, scale: Scale) -> Measurement:
    """Requests per CPU second of the broker, in turns."""
    measurement = Measurement(name, "requests/CPU s", bar=0.95, aim=0.98, subject=ON, peer=OFF)
    blocks = 2 if scale.is_quick else BLOCKS
    for number in range(2 if scale.is_quick else 1 + ROUNDS):
        lanes = {ON: Lane(checked, acks, True), OFF: Lane(plain, acks, True)}
        for block in range(blocks):
            for lane in sorted(lanes, reverse=bool(block % 2)):
                lanes[lane].send()
        for lane, it in lanes.items():
            if number:  # the first round warms up
                measurement.add(lane, blocks * BLOCK / (it.spent_ns / 1e9))
            it.close()
    return measurement


def create_entries(target: Target) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    def entry(name: str, pattern: ResourcePatternType, user: str) -> AclBinding:
        return AclBinding(
            ResourceType.TOPIC, name, pattern, f"User:{user}", "*", AclOperation.ALL,
            AclPermissionType.ALLOW,
        )  # fmt: skip

    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    entries = [entry("*", literal, "ANONYMOUS")]
    for number in range(ENTRIES // 2):
        entries.append(entry(f"orders-{number}", literal, f"user-{number}"))
        entries.append(entry(f"team-{number}.", prefixed, f"user-{number}"))
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    for made in admin.create_acls(entries, request_timeout=60).values():
        made.result(120)
