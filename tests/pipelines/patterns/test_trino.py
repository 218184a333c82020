"""The published cases by Trino: what they expect is what the standard says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.cache import PeerMissing
from tests.peers.trino import Trino, TrinoError, running_trino
from tests.pipelines.patterns.published import CASES, Case

pytestmark = [pytest.mark.slow, pytest.mark.java]

# In this version of Trino, a running FIRST sees rows after the current one.
WRONG = ("FIRST(value, 2)",)


@pytest.fixture(scope="module")
def trino() -> Iterator[Trino]:
    try:
        with running_trino() as it:
            yield it
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(
    "case", [it for it in CASES if it.name not in WRONG], ids=lambda it: it.name
)
def test_published_results_are_those_of_trino(trino: Trino, case: Case) -> None:
    values = ", ".join(f"({number}, {value})" for number, value in case.rows)
    columns = ", ".join(case.columns or ("*",))
    query = f"SELECT {columns} FROM (VALUES {values}) AS t(id, value) MATCH_RECOGNIZE ({case.text})"
    if case.fails:
        with pytest.raises(TrinoError, match="SKIP failed"):
            trino.query(query)
        return
    assert sorted(trino.query(query), key=str) == sorted(case.expected, key=str)
