"""A response that comes later: once, to whoever waits for it."""

from __future__ import annotations

from millstream.broker.deferred import Buffers, Deferred


def test_callback_gets_the_body_whether_it_comes_before_or_after() -> None:
    bodies: list[Buffers | None] = []
    early, late = Deferred(), Deferred()
    early.when_done(lambda deferred: bodies.append(deferred.body))
    early.complete(b"early")
    late.complete(b"late")
    late.when_done(lambda deferred: bodies.append(deferred.body))
    assert bodies == [b"early", b"late"]


def test_only_the_first_completion_counts() -> None:
    bodies: list[Buffers | None] = []
    deferred = Deferred()
    deferred.when_done(lambda done: bodies.append(done.body))
    deferred.complete(b"first")
    deferred.complete(b"second")
    assert bodies == [b"first"]


def test_cancelled_response_is_never_given_and_its_work_is_stopped_once() -> None:
    stopped: list[bool] = []
    bodies: list[Buffers | None] = []
    deferred = Deferred(exclusive=True)
    assert deferred.exclusive
    deferred.on_cancel = lambda: stopped.append(True)
    deferred.when_done(lambda done: bodies.append(done.body))
    deferred.cancel()
    deferred.cancel()
    deferred.complete(b"too late")
    assert stopped == [True]
    assert bodies == []
