"""A matcher that is broken on purpose fails the tests of the matcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines.patterns.mutants import MUTANTS, VARIABLE, Mutant, build

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
TESTS = [str(HERE / f"test_{name}.py") for name in ("matcher", "conditions", "measures")]


def outcome(matcher: Path) -> subprocess.CompletedProcess[str]:
    plugins = ["-p", "tests.pipelines.patterns.mutants", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", *plugins, *TESTS],
        cwd=HERE.parents[2],
        env=os.environ | {VARIABLE: str(matcher)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_unchanged_matcher_passes(tmp_path: Path) -> None:
    same = Mutant("unchanged", "_scan.pxi", "# The attempts of one key", "# The attempts of a key")
    done = outcome(build(same, tmp_path))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda it: it.name)
def test_mutant_is_found(mutant: Mutant, tmp_path: Path) -> None:
    done = outcome(build(mutant, tmp_path))
    assert done.returncode == 1, f"{mutant.name} is not found: {done.stdout}{done.stderr}"
