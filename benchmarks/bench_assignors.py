"""How long the coordinator computes when a member joins a large consumer group.

    python benchmarks/bench_assignors.py [--members 1000] [--partitions 10000] [--rounds 5]

The event loop stands still meanwhile, so these are stalls. Every figure is the best of the rounds,
in milliseconds of CPU time:

    from nothing   nobody owns anything yet
    join           one more member, the others own everything
    leave          one member less

docs/decisions/0003-consumer-groups.md draws the conclusions.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from uuid import UUID

from millstream.coordination.groups.assignors import ASSIGNORS, Assignment, Assignor, Subscriber

TOPIC_COUNTS = (1, 100, 1000)


def best_ms(rounds: int, work: Callable[[], object]) -> float:
    figures = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        figures.append(1000 * (time.process_time() - started))
    return min(figures)


def measure(
    assign: Assignor, members: dict[str, Subscriber], counts: dict[UUID, int], rounds: int
) -> list[float]:
    target: dict[str, Assignment] = assign(members, counts)
    settled = {name: Subscriber(m.topics, target[name]) for name, m in members.items()}
    joined = settled | {"new": Subscriber(frozenset(counts))}
    left = dict(list(settled.items())[1:])
    return [best_ms(rounds, lambda g=group: assign(g, counts)) for group in (members, joined, left)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    names = [f"member-{number}" for number in range(arguments.members)]
    print("| assignor | subscriptions | topics | from nothing | join | leave |")
    print("|---|---|---:|---:|---:|---:|")
    for topic_count in TOPIC_COUNTS:
        size = max(arguments.partitions // topic_count, 1)
        counts = {UUID(int=number + 1): size for number in range(topic_count)}
        chance = random.Random(topic_count)
        half = max(topic_count // 2, 1)
        everything = frozenset(counts)
        groups = {"the same": {name: Subscriber(everything) for name in names}}
        if topic_count > 1:
            groups["half, at random"] = {
                name: Subscriber(frozenset(chance.sample(sorted(counts), half))) for name in names
            }
        for assignor, assign in ASSIGNORS.items():
            for subscriptions, members in groups.items():
                figures = measure(assign, members, counts, arguments.rounds)
                told = " | ".join(f"{figure:.0f}" for figure in figures)
                print(f"| {assignor} | {subscriptions} | {topic_count} | {told} |")


if __name__ == "__main__":
    main()
