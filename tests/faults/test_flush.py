"""Acknowledged means flushed: the system calls of the real server, in their order."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.strace import OPTIONS, Answered, parse, unflushed
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, start_millstream
from tests.peers.wire import Wire, batch, produce_fields, request_frame

pytestmark = pytest.mark.skipif(
    shutil.which("strace") is None, reason="`strace` is not installed: `apt-get install strace`"
)

PARTITIONS = 12
CONNECTIONS = 4
ROUNDS = 8


def traced_run(directory: Path, topic_config: dict[str, str]) -> list[Answered]:
    """Produce with acks=all to a server under strace, and stop it; returns what was answered."""
    trace = directory / "trace"
    server = start_millstream(directory / "data", wrapper=["strace", *OPTIONS, "-o", str(trace)])
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        topic = NewTopic("flushed", PARTITIONS, 1, config=topic_config)
        admin.create_topics([topic])["flushed"].result(PATIENCE_SECONDS)
        return produce(server, random.Random(7))
    finally:
        stop_traced(server)


def produce(server: Server, dice: random.Random) -> list[Answered]:
    """Requests in flight on several connections at once: alone, and many in one flush."""
    answers: list[Answered] = []
    wires = [Wire(server.bootstrap) for _ in range(CONNECTIONS)]
    for _ in range(ROUNDS):
        sent: list[tuple[Wire, int]] = []
        for wire in wires:
            for _ in range(dice.choice([1, 1, 5])):
                answered = Answered(dice.randbytes(16), dice.getrandbits(30) | 1 << 30)
                records = batch([answered.marker + b"x" * dice.choice([10, 10, 5000, 20_000])])
                partition = dice.randrange(PARTITIONS)
                fields = produce_fields("flushed", records, partition=partition)
                wire.send(request_frame("produce", 9, answered.correlation_id, **fields))
                sent.append((wire, answered.correlation_id))
                answers.append(answered)
        for wire, _ in sent:
            answer = wire.receive("produce", 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
    for wire in wires:
        wire.socket.close()
    return answers


def stop_traced(server: Server) -> None:
    """strace passes no signal on: stop its child, and it ends as well."""
    for child in psutil.Process(server.process.pid).children():
        child.terminate()
    server.process.wait(PATIENCE_SECONDS)


def read_trace(directory: Path) -> list[str]:
    return (directory / "trace").read_text().splitlines()


def test_every_acks_all_answer_waits_for_a_flush_of_its_bytes(tmp_path: Path) -> None:
    answers = traced_run(tmp_path, {})
    calls = parse(read_trace(tmp_path))
    assert len(answers) > CONNECTIONS * ROUNDS
    assert unflushed(calls, answers) == []
    synced = {Path(call.target).name for call in calls if call.name == "fdatasync"}
    assert any(name.endswith(".log") for name in synced), "no flush of much data was seen"
    assert any("journal" in name for name in synced), "no flush of little data was seen"


def test_checker_reports_a_server_that_does_not_flush(tmp_path: Path) -> None:
    """The same run with the flush taken out: the proof above can fail."""
    answers = traced_run(tmp_path, {"millstream.acks.all.flush": "false"})
    missing = unflushed(parse(read_trace(tmp_path)), answers)
    assert len(missing) > len(answers) / 2


def test_checker_reports_one_flush_taken_out_of_the_trace(tmp_path: Path) -> None:
    answers = traced_run(tmp_path, {})
    calls = parse(read_trace(tmp_path))
    assert unflushed(calls, answers) == []
    last = answers[-1]
    answer_id = last.correlation_id.to_bytes(4, "big")
    sent = min(c.began for c in calls if c.is_socket and answer_id in c.content)
    written = {c.target for c in calls if not c.is_socket and last.marker in c.content}
    first_write = min(c.began for c in calls if not c.is_socket and last.marker in c.content)
    without = [
        call
        for call in calls
        if not (
            call.name == "fdatasync" and call.target in written and first_write < call.began < sent
        )
    ]
    assert last in unflushed(without, answers)
