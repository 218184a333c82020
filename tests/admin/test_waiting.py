"""Waiting ends when the change shows, and after its limit."""

from __future__ import annotations

from millstream.admin.waiting import wait_until_shown


def test_wait_ends_when_it_shows_or_at_the_limit() -> None:
    answers = iter([False, False, True])
    assert wait_until_shown(lambda: next(answers))
    assert not wait_until_shown(lambda: False, seconds_max=0.0)
