"""Tables that a pipe can carry."""

from __future__ import annotations

import json

import pytest

from millstream.cli.output import print_json, print_pairs, print_rows, warn


def test_rows_are_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "x" * 300, "count": 5}, {"name": "[red]", "count": 1000}]
    print_rows(rows, {"name": "NAME", "count": "COUNT"}, empty="none")
    lines = capsys.readouterr().out.splitlines()
    assert "x" * 300 in lines[2]
    assert lines[3].startswith("[red]")
    assert lines[2].rstrip().endswith("   5")
    assert lines[3].rstrip().endswith("1000")


def test_rows_say_why_there_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], {"name": "NAME"}, empty="nothing here")
    assert capsys.readouterr().out == "nothing here\n"


def test_missing_cells_are_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs([("a", None), ("b", ""), ("c", [1, 2]), ("d", 0)])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["a", "-"], ["b", "-"], ["c", "1,", "2"], ["d", "0"],
    ]  # fmt: skip


def test_json_keeps_letters_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"å": 1})
    out = capsys.readouterr().out
    assert "å" in out
    assert json.loads(out) == {"å": 1}


def test_warnings_keep_out_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    warn("t[0] is late")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "warning: t[0] is late\n")
