"""What the process reports about itself."""

from __future__ import annotations

from pathlib import Path

from millstream.metrics import process
from millstream.metrics.exposition import render


def test_open_files_and_memory_are_those_of_this_process(tmp_path: Path) -> None:
    before = process.read()
    files = [(tmp_path / str(number)).open("w") for number in range(10)]
    after = process.read()
    for file in files:
        file.close()
    assert (after.open_fds or 0) - (before.open_fds or 0) == 10
    assert 10**6 < (after.resident_bytes or 0) < 10**11
    assert after.cpu_seconds >= before.cpu_seconds > 0


def test_unknown_values_are_left_out() -> None:
    text = "".join(render(process.families(process.ProcessState(cpu_seconds=1.5))))
    assert "process_cpu_seconds_total 1.5\n" in text
    assert "process_open_fds" not in text
