"""Time and events: order, processes that die or pause, the trace."""

from __future__ import annotations

from millstream.testing.simulation.world import Action, World


class Sleeper:
    def __init__(self) -> None:
        self.is_dead = False
        self.is_paused = False
        self.backlog: list[tuple[str, Action]] = []


def test_events_run_in_the_order_of_time_and_of_scheduling() -> None:
    world, seen = World(1), []
    world.after(5, "c", lambda: seen.append("c"))
    world.after(1, "a", lambda: seen.append("a"))
    world.after(1, "b", lambda: seen.append("b"))
    world.run_until(4)
    assert (seen, world.now_ms) == (["a", "b"], 4)
    world.run_until(9)
    assert (seen, world.event_count) == (["a", "b", "c"], 3)


def test_events_of_a_dead_process_are_dropped_and_of_a_paused_one_wait() -> None:
    world, seen = World(1), []
    dead, paused = Sleeper(), Sleeper()
    dead.is_dead = paused.is_paused = True
    world.after(1, "dead", lambda: seen.append("dead"), dead)
    world.after(2, "late", lambda: seen.append("late"), paused)
    world.run_until(10)
    assert seen == []
    world.resume(paused)
    world.run_until(10)
    assert seen == ["late"]


def test_violation_contains_the_seed_and_the_trace() -> None:
    world = World(42)
    world.after(3, "something", lambda: world.note("a note"))
    world.run_until(3)
    text = str(world.violation("wrong"))
    assert text.startswith("seed 42, event 1, 3 ms: wrong")
    assert "      3 something" in text
    assert "a note" in text
