"""Where the command begins: who serves, and who is handed on."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.conftest import Run


def test_serve_explains_a_wrong_option_through_typer(run: Run) -> None:
    result = run("serve", "--listne", "127.0.0.1:0")
    assert result.exit_code == 2
    assert "--listne" in result.err


def test_serve_fails_with_one_line_when_a_setting_is_wrong(run: Run) -> None:
    result = run("serve", "--set", "num.partitons=1")
    assert result.exit_code == 1
    assert result.err.startswith("millstream: ")
    assert "num.partitions" in result.err


def test_entry_can_be_run_as_a_module() -> None:
    command = [sys.executable, "-m", "millstream.cli.entry", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("millstream ")
