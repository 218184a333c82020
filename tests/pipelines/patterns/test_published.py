"""Cases of the standard that other engines publish; `published.py` has them."""

from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from tests.pipelines.patterns.batches import run_sql
from tests.pipelines.patterns.published import CASES, Case

# Every third one in `make test`: neighbours are alike.
SHOWN = [
    pytest.param(case, marks=pytest.mark.slow) if place % 3 else case
    for place, case in enumerate(CASES)
]


@pytest.mark.parametrize("case", SHOWN, ids=lambda it: it.name)
def test_results_are_those_of_the_standard(case: Case) -> None:
    if case.fails:
        with pytest.raises(ConfigError, match=case.fails):
            run_sql(case.text, case.dicts())
        return
    found = [tuple(it[name] for name in case.columns) for it in run_sql(case.text, case.dicts())]
    assert sorted(found, key=str) == sorted(case.expected, key=str)
