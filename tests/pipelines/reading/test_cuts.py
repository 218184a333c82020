"""Ends that a stream does not read beyond."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.reading.cuts import Cut, read_cut, write_cut

A0, A1 = ("a", 0), ("a", 1)


def test_cut_limits_what_is_read_and_never_goes_back() -> None:
    cut = Cut({A0: 10, A1: 5})
    assert cut.limit({A0: 3, A1: 7}, {A0: 20, A1: 9}) == {A0: 10, A1: 7}
    assert cut.limit({A0: 3, A1: 1}, {A0: 4, A1: 9}) == {A0: 4, A1: 5}


def test_partition_without_a_cut_is_not_read_further() -> None:
    assert Cut({A0: 10}).limit({A0: 3, A1: 1}, {A0: 4, A1: 9}) == {A0: 4, A1: 1}
    assert Cut(None).limit({A0: 3}, {A0: 4, A1: 9}) == {A0: 3}


def test_file_has_a_cut_or_a_halt_or_nothing(tmp_path: Path) -> None:
    file = tmp_path / "halts" / "revenue.json"
    assert read_cut(None) is None
    assert read_cut(file) is None
    for cut in (Cut(None), Cut({A0: 10})):
        write_cut(file, cut)
        assert read_cut(file) == cut
    file.write_text("x")
    with pytest.raises(ConfigError, match=r"haltFile .* is not one of ours"):
        read_cut(file)
