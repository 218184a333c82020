"""The compiled matcher, broken on purpose: its source with one change, compiled and loaded.

    MUTATED_MATCHER=/tmp/m/_matcher.so pytest -p tests.pipelines.patterns.mutants ...

As a plugin of pytest, this module loads the given matcher in place of ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).resolve().parents[3] / "src/millstream/pipelines/patterns"
MODULE = "millstream.pipelines.patterns._matcher"
VARIABLE = "MUTATED_MATCHER"


class Mutant(NamedTuple):
    """A change of one place in a file."""

    name: str
    file: str
    right: str
    wrong: str


MUTANTS = (
    Mutant(
        "takes a row at the limit of time",
        "_scan.pxi",
        "time_us - attempt.start_us >= self.machine.within",
        "time_us - attempt.start_us > self.machine.within",
    ),
    Mutant(
        "takes a row more than the limit",
        "_scan.pxi",
        "number - attempt.start >= self.machine.max_rows",
        "number - attempt.start > self.machine.max_rows",
    ),
    Mutant(
        "ends attempts in the order of their beginnings when time goes back",
        "_scan.pxi",
        "            self.in_order = False",
        "            self.in_order = True",
    ),
    Mutant(
        "joins attempts whose threads differ",
        "_scan.pxi",
        "left.threads, right.threads, 8 * self.machine.stride * right.count",
        "left.threads, right.threads, 0",
    ),
    Mutant(
        "notes a match of a group for its first attempt only",
        "_scan.pxi",
        """                if self.attempts[at].is_open:
                    self.note_match(&self.attempts[at], end)""",
        """                if self.attempts[at].is_open:
                    self.note_match(&self.attempts[at], end); break""",
    ),
    Mutant(
        "forgets the end of the last match between batches",
        "_scan.pxi",
        "self.position = self.next_number - reader.number()",
        "self.position = self.next_number - 0 * reader.number()",
    ),
    Mutant(
        "forgets the best match between batches",
        "_scan.pxi",
        "attempt.best_end = start + length - 1 if length else -1",
        "attempt.best_end = -1",
    ),
    Mutant(
        "begins a match with the last row of the one before",
        "_scan.pxi",
        "self.position = attempt.best_end\n",
        "self.position = attempt.best_end - 1\n",
    ),
    Mutant(
        "takes the first row of every batch for that of the key",
        "_scan.pxi",
        "machine.at_first_row = self.is_new and self.next_number",
        "machine.at_first_row = self.next_number",
    ),
    Mutant(
        "prefers the right alternative",
        "_matcher.pyx",
        "self.stack[depth] = self.y[place]\n                self.stack[depth + 1] = self.x[place]",
        "self.stack[depth] = self.x[place]\n                self.stack[depth + 1] = self.y[place]",
    ),
    Mutant(
        "goes on after the preferred match",
        "_matcher.pyx",
        "if self.is_done or (self.register_count and",
        "if (self.register_count and",
    ),
    Mutant(
        "repeats a loop without a row",
        "_matcher.pyx",
        "if self.marks[self.x[place]] == self.generation:",
        "if False:",
    ),
    Mutant(
        "merges threads that have other values",
        "_matcher.pyx",
        "if thread[0] == place and thread[1] == self.fresh[1] and not memcmp(",
        "if thread[0] == place or not memcmp(",
    ),
    Mutant(
        "counts nulls",
        "_matcher.pyx",
        "            if is_null:\n                continue\n",
        "            if is_null and kind != COUNT_VALUES:\n                continue\n",
    ),
    Mutant(
        "reads the first value of a later row",
        "_matcher.pyx",
        "if old[other] == self.register_depth[at]:",
        "if old[other] >= self.register_depth[at]:",
    ),
    Mutant(
        "shows excluded rows",
        "_matcher.pyx",
        "variable | (0x80 if is_excluded else 0)",
        "variable",
    ),
)


def build(mutant: Mutant, directory: Path) -> Path:
    """The compiled matcher with this change."""
    for path in (*SOURCES.glob("_*.pyx"), *SOURCES.glob("_*.pxi")):
        text = path.read_text()
        if path.name == mutant.file:
            if text.count(mutant.right) != 1:
                raise ValueError(f"{mutant.name}: its place is not in {path.name}, or twice")
            text = text.replace(mutant.right, mutant.wrong)
        (directory / path.name).write_text(text)
    source, built = directory / "_matcher.pyx", directory / "_matcher.so"
    cython = [sys.executable, "-m", "cython", "-3", str(source)]
    subprocess.run(cython, check=True, capture_output=True)
    include = f"-I{sysconfig.get_paths()['include']}"
    compiler = ["cc", "-O0", "-shared", "-fPIC", include, str(source.with_suffix(".c"))]
    subprocess.run([*compiler, "-o", str(built)], check=True, capture_output=True)
    return built


def load(path: Path) -> None:
    """Use this matcher from now on."""
    spec = spec_from_file_location(MODULE, path, loader=ExtensionFileLoader(MODULE, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)


if VARIABLE in os.environ:
    load(Path(os.environ[VARIABLE]))
