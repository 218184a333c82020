"""The timeline is the join of its tables after every event, whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from examples.timeline import Recomputation, Timeline, main
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import draws

PEOPLE = st.sampled_from(["ann", "bea", "carl"])
IDS = st.integers(1, 3)
EVENTS = st.one_of(
    st.tuples(
        st.just("post"),
        st.fixed_dictionaries({"post_id": IDS, "author": PEOPLE, "text": st.sampled_from("xy")}),
    ),
    st.tuples(st.just("delete"), st.fixed_dictionaries({"post_id": IDS})),
    st.tuples(
        st.sampled_from(["follow", "follow", "unfollow"]),
        st.fixed_dictionaries({"follower": PEOPLE, "author": PEOPLE}),
    ),
)


@settings(max_examples=draws(20))
@given(st.lists(EVENTS, max_size=20))
def test_timeline_equals_its_recomputation_after_each_event(
    events: list[tuple[str, dict[str, Any]]],
) -> None:
    """A post may even get another author: it leaves one timeline and enters another."""
    timeline, check = Timeline(), Recomputation()
    for verb, row in events:
        timeline.apply(verb, row)
        check.apply(verb, row)
        assert timeline.entries == check.entries()


def test_example_tells_what_each_event_changes(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    told = capsys.readouterr().out.splitlines()
    after_edit = told.index("post 1 ann hello, world")
    assert sorted(told[after_edit + 1 : after_edit + 5]) == [
        "    delete for bea: ann: hello",
        "    delete for carl: ann: hello",
        "    insert for bea: ann: hello, world",
        "    insert for carl: ann: hello, world",
    ]
