"""Processes claim the same user names while broker and claimants are killed: one of them
gets each name, and all others are refused."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millstream.events import CommandHandler, EventLog
from tests.faults.claims_driver import names
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port, start_millstream

NAMES = [f"name-{number}" for number in range(12)]


def claimant(bootstrap_servers: str, topic: str, person: str, out: Path) -> subprocess.Popen[bytes]:
    wanted = random.Random(person).sample(NAMES, len(NAMES))
    command = [sys.executable, "-m", "tests.faults.claims_driver"]
    with out.open("ab") as written:
        return subprocess.Popen(
            [*command, bootstrap_servers, topic, person, ",".join(wanted)],
            stdin=subprocess.PIPE,
            stdout=written,
        )


def let_begin(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()


def wait_for_lines(paths: list[Path], count: int) -> None:
    """Until so many lines are printed."""
    pause = threading.Event()
    while sum(path.read_bytes().count(b"\n") for path in paths if path.exists()) < count:
        pause.wait(0.01)


@pytest.mark.parametrize("count", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_each_name_is_claimed_by_one_of_many_processes(tmp_path: Path, count: int) -> None:
    people = [f"p{number}" for number in range(count)]
    port = free_port()
    server = start_millstream(tmp_path / "data", port=port)
    bootstrap_servers, topic = f"127.0.0.1:{port}", "names"
    outs = {person: tmp_path / person for person in people}
    try:
        with EventLog(bootstrap_servers, topic) as log:
            log.create()
        running = {it: claimant(bootstrap_servers, topic, it, outs[it]) for it in people}
        wait_for_lines(list(outs.values()), len(people))
        let_begin(*running.values())
        for round_number, outcomes in enumerate((count // 2, 3 * count, 6 * count)):
            wait_for_lines(list(outs.values()), len(people) + outcomes)
            server.kill()
            for person in people[round_number::7]:  # with answers lost, or not
                running[person].kill()
                running[person].wait()
                running[person] = claimant(bootstrap_servers, topic, person, outs[person])
                let_begin(running[person])
            server = start_millstream(tmp_path / "data", port=port)
        for process in running.values():
            assert process.wait(PATIENCE_SECONDS) == 0
        with EventLog(bootstrap_servers, topic) as log:
            events = list(log.events(0, 0, log.end_offset(0)))
            owners = {name: CommandHandler(log, names).load(name).state for name in NAMES}
    finally:
        server.stop()
    assert sorted(it.aggregate_id for it in events) == sorted(NAMES)
    assert all(it.version == 1 for it in events)
    for person, out in outs.items():
        lines = [line for line in out.read_text().splitlines() if line != "ready"]
        assert dict(line.split(" ") for line in lines) == {
            name: "won" if owner == person else owner for name, owner in owners.items()
        }
    assert len(set(owners.values())) > 1
