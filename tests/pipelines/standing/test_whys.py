"""Explanations: numbered once, kept, and forgotten when there are too many."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.pipelines.standing import whys
from millstream.pipelines.standing.templates import Compiler
from millstream.pipelines.standing.whys import SegmentWhys, Whys
from tests.pipelines.standing.drawing import SCHEMA

QUERIES = [Compiler(SCHEMA).compile(it) for it in ("n = 1 OR x < 2", "n = 3 OR x < 4")]


def test_hits_with_the_same_conditions_share_their_explanation() -> None:
    every = Whys()
    mine = SegmentWhys(every, QUERIES)
    numbers = mine.of_masks(np.array([1, 0, 1, 1]), np.array([1, 3, 2, 1]))
    expected = [["n = 3"], ["n = 1", "x < 2"], ["x < 4"], ["n = 3"]]
    assert every.take(numbers).to_pylist() == expected
    assert numbers[0] == numbers[3]
    again = mine.of_masks(np.array([0]), np.array([3]))
    assert again.tolist() == [numbers[1]]
    assert every.take(mine.of_whole(np.array([1, 1]))).to_pylist() == [["n = 3", "x < 4"]] * 2


def test_explanations_are_made_again_when_they_were_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = Whys()
    mine = SegmentWhys(every, QUERIES)
    every.take(mine.of_whole(np.array([0, 1])))
    every.trim()
    assert every.generation == 0
    monkeypatch.setattr(whys, "WHYS_MAX", 1)
    every.trim()
    mine.refresh()
    assert every.generation == 1
    assert every.take(mine.of_whole(np.array([1]))).to_pylist() == [["n = 3", "x < 4"]]
