"""Results of events: built step by step, and put together."""

from __future__ import annotations

from millstream.coordination.result import (
    Answer,
    CancelTimer,
    CoordinatorRecord,
    Result,
    ResultBuilder,
    SetTimer,
    combine,
)


def test_builder_collects_in_order() -> None:
    out = ResultBuilder()
    out.write("key", "value")
    out.extend((CoordinatorRecord("other", None),))
    out.answer(1, "yes")
    out.set_timer(("a",), 5)
    out.cancel_timer(("b",))
    assert out.result("response") == Result(
        records=(CoordinatorRecord("key", "value"), CoordinatorRecord("other", None)),
        response="response",
        answers=(Answer(1, "yes"),),
        timers=(SetTimer(("a",), 5), CancelTimer(("b",))),
    )


def test_combined_results_keep_their_order_and_drop_responses() -> None:
    first = Result(records=(CoordinatorRecord("a", 1),), response="dropped")
    second: Result[str] = Result(records=(CoordinatorRecord("b", 2),), answers=(Answer(1, "x"),))
    assert combine([first, second]) == Result(
        records=(CoordinatorRecord("a", 1), CoordinatorRecord("b", 2)), answers=(Answer(1, "x"),)
    )
    assert combine([]) == Result()
