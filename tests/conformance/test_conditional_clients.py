"""Conditional appends with ordinary producers of other languages: refusals, and what comes after.

The same steps with each kind of producer. A refusal is an error that is not retried, and the
producer goes on afterwards. The other records of a refused batch are refused too.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.broker.embedded import Broker
from tests.peers.cache import PeerMissing
from tests.peers.clients import go_program
from tests.peers.java_runtime import java_program
from tests.peers.patience import PATIENCE_SECONDS

KINDS = ("plain", "idempotent", "transactional")
STEPS = ["first", "stale", "next", "mixed", "mixed", "after", "after"]
CONFLICT = "version conflict: the record has version {}, its key is at version {}"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker.start(in_process=False) as running:
        yield running


def new_topic(broker: Broker, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    settings = {"millstream.conditional.append": "version"}
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(PATIENCE_SECONDS)
    return name


@pytest.mark.slow
@pytest.mark.java
def test_java_producers_get_the_reason_and_go_on(broker: Broker) -> None:
    for kind in KINDS:
        new_topic(broker, f"java-{kind}")
    try:
        program = java_program("ConditionalProgram", sources="java/conditional")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    done = subprocess.run(
        [*program, broker.bootstrap_servers, *KINDS], capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    for kind in KINDS:
        own = [(step, result, message) for of, step, result, message in lines if of == kind]
        assert [step for step, _, _ in own] == STEPS, kind
        results = [result for _, result, _ in own]
        assert [results[it] for it in (0, 2, 5, 6)] == ["ok"] * 4, kind
        assert results[1] == "PolicyViolationException", kind
        assert "ok" not in results[3:5], kind
        assert CONFLICT.format(1, 1) in own[1][2]
        assert CONFLICT.format(2, 2) in own[4][2]


@pytest.mark.parametrize("kind", KINDS)
def test_franz_go_producer_is_refused_and_goes_on(broker: Broker, kind: str) -> None:
    topic = new_topic(broker, f"go-{kind}")
    try:
        program = go_program()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    wanted = {
        "action": "conditional",
        "bootstrap": broker.bootstrap_servers,
        "topic": topic,
        "idempotent": kind != "plain",
        "transactional_id": topic if kind == "transactional" else "",
    }
    done = subprocess.run(
        program, input=json.dumps(wanted) + "\n", capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=True,
    )  # fmt: skip
    answers = json.loads(done.stdout)["answers"]
    assert [step for step, _ in answers] == STEPS
    results = [result for _, result in answers]
    assert [results[it] for it in (0, 2, 5, 6)] == ["ok"] * 4
    assert all("POLICY_VIOLATION" in results[it] for it in (1, 3, 4)), results
