"""The points at which the slow tests kill pipelines exist: a renamed function is noticed early."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.kill_points import PATCHES
from tests.peers.patience import PATIENCE_SECONDS

PROGRAM = """
import importlib, sys
from tests.faults.kill_points import install
install([])
importlib.import_module(sys.argv[1])
"""

pytest.importorskip("pyspark")


@pytest.mark.parametrize("module", PATCHES)
def test_functions_to_be_wrapped_exist(module: str) -> None:
    command = [sys.executable, "-c", PROGRAM, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
