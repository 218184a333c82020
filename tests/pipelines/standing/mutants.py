"""The language and the index of standing queries, broken on purpose: one change in a module.

    MUTATED_STANDING='takes an event at the end' pytest -p tests.pipelines.standing.mutants ...

As a plugin of pytest, this module loads the changed source in place of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

SOURCES = Path(__file__).resolve().parents[3] / "src/millstream/pipelines/standing"
PACKAGE = "millstream.pipelines.standing"
VARIABLE = "MUTATED_STANDING"


class Mutant(NamedTuple):
    """A change of one place in a module."""

    name: str
    module: str
    right: str
    wrong: str


MUTANTS = (
    # The language
    Mutant("leaves quotes doubled", "lexing", """.replace("''", "'")""", ""),
    Mutant("takes != for =", "lexing", '"!=": "<>"', '"!=": "="'),
    Mutant("takes fields for keywords", "lexing", 'tokens[-1].value == "."', "False"),
    Mutant("flips 3 < n to n >= 3", "syntax", '_FLIPPED = {"<": ">"', '_FLIPPED = {"<": ">="'),
    Mutant(
        "leaves out the upper bound of BETWEEN",
        "syntax",
        'Compare(name, kind, "<=", high, tokens)',
        'Compare(name, kind, "<", high, tokens)',
    ),
    Mutant(
        "lets OR bind more tightly than AND",
        "syntax",
        'self._joined(self._not, "AND", Both), "OR", Either',
        'self._joined(self._not, "OR", Either), "AND", Both',
    ),
    Mutant(
        "takes IS NOT NULL for IS NULL",
        "syntax",
        "return Not(node) if is_negated else node\n        kind",
        "return node\n        kind",
    ),
    Mutant(
        "takes NOT IN for IN",
        "syntax",
        ")\n        return Not(node) if is_negated else node\n\n    def _is_literal",
        ")\n        return node\n\n    def _is_literal",
    ),
    Mutant(
        "takes NOT tea for tea",
        "syntax",
        "return Not(self._nested(lambda: self._text_not(name)))",
        "return self._nested(lambda: self._text_not(name))",
    ),
    # Versions
    Mutant(
        "takes an event at the end",
        "stored",
        "time_us < self._until_us",
        "time_us <= self._until_us",
    ),
    Mutant(
        "leaves out an event at the beginning",
        "stored",
        "self._since_us[hits.queries] <= time_us",
        "self._since_us[hits.queries] < time_us",
    ),
    Mutant("keeps what was replaced in force", "stored", "            large.refresh()\n", ""),
    Mutant(
        "begins before the record",
        "stored",
        "max(since_us, definition.since_us or since_us)",
        "min(since_us, definition.since_us or since_us)",
    ),
    Mutant(
        "suspends one query less", "stored", "place >= self._scans_max", "place > self._scans_max"
    ),
    # The index
    Mutant(
        "finds a query by two conditions twice",
        "segment",
        "keys = keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]",
        "keys = keys[:]",
    ),
    Mutant(
        "finds phrases across texts",
        "terms",
        "(row_of[here] == row_of[places])",
        "(row_of[here] >= row_of[places])",
    ),
    Mutant(
        "finds the first words of phrases",
        "terms",
        "(wanted < 0) | (fits & (ids[here] == wanted))",
        "(wanted < 0) | fits",
    ),
    Mutant(
        "takes null for a number in the range",
        "paths",
        "events, at = events[has_both], at[has_both]",
        "has_both",
    ),
    Mutant(
        "keeps the index of a recreated topic",
        "loading",
        "topic_id != self._topic_id or end",
        "end",
    ),
)


class MutatedLoader(SourceFileLoader):
    """Loads the source of a module with a change."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(f"{PACKAGE}.{mutant.module}", str(SOURCES / f"{mutant.module}.py"))
        self._mutant = mutant

    def get_code(self, fullname: str) -> Any:
        text = Path(self.path).read_text()
        if text.count(self._mutant.right) != 1:
            raise ValueError(f"{self._mutant.name}: its place is not in {self.path}, or twice")
        return compile(text.replace(self._mutant.right, self._mutant.wrong), self.path, "exec")


class MutatedFinder(MetaPathFinder):
    """Finds the mutant in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self._loader = MutatedLoader(mutant)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._loader.name:
            return None
        return spec_from_file_location(name, self._loader.path, loader=self._loader)


if VARIABLE in os.environ:
    (chosen,) = [it for it in MUTANTS if it.name == os.environ[VARIABLE]]
    if f"{PACKAGE}.{chosen.module}" in sys.modules:
        raise RuntimeError(f"{chosen.module} is loaded already")
    sys.meta_path.insert(0, MutatedFinder(chosen))
