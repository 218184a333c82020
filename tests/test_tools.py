"""The house's own scripts: what they say on a machine where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_on_a_bare_machine(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script with nothing on the path, as on a machine that has only Python."""
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / script), *arguments],
        env=os.environ | {"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_install_says_in_one_line_that_there_is_no_compiler(tmp_path: Path) -> None:
    done = run_on_a_bare_machine("install.py", str(tmp_path / "venv"))
    assert done.returncode == 1
    assert done.stderr.startswith("install: no C compiler: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "venv").exists()


def test_system_names_each_missing_component_and_goes_on() -> None:
    done = run_on_a_bare_machine("system.py")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    names = [line.split()[2] for line in lines]
    missing = " ".join(it for it in names if not it.startswith("/"))  # files may be there
    assert missing == "java mvn kcat ip strace node go prometheus chromium pg_ctlcluster"
    assert all("; try: " in line for line in lines)


def test_system_looks_only_for_what_is_named() -> None:
    done = run_on_a_bare_machine("system.py", "java")
    assert done.returncode == 0
    assert done.stdout.startswith("system: no java (Spark; Apache Kafka, its tools and client); ")
    assert done.stdout.count("\n") == 1


def test_make_help_lists_the_verbs() -> None:
    done = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    verbs = {line.split()[0] for line in done.splitlines()}
    assert {"install", "demo", "test", "test-all", "lint", "bench", "docs"} <= verbs


def test_ci_runs_what_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("exec make test")
