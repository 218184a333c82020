"""Standing queries that are broken on purpose fail their tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines.standing.mutants import MUTANTS, VARIABLE, Mutant

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
NAMES = ("lexing", "syntax", "reference", "terms", "paths", "segment", "stored", "loading")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda it: it.name)
def test_mutant_is_found(mutant: Mutant) -> None:
    plugins = ["-p", "tests.pipelines.standing.mutants", "-p", "no:cacheprovider"]
    tests = [str(HERE / f"test_{name}.py") for name in NAMES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", *plugins, *tests],
        cwd=HERE.parents[2],
        env=os.environ | {VARIABLE: mutant.name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, f"{mutant.name} is not found: {done.stdout}{done.stderr}"
    assert "its place is not in" not in done.stdout + done.stderr
