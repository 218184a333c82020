"""The network: delays, one-way cuts, losses."""

from __future__ import annotations

from millstream.testing.simulation.network import Network
from millstream.testing.simulation.world import World


def sent(network: Network, world: World, *links: tuple[int, int]) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    for link in links:
        network.send(*link, "message", lambda link=link: seen.append(link), None)  # type: ignore[misc]
    world.run_until(world.now_ms + 1_000)
    return seen


def test_cut_loses_messages_in_one_direction_until_it_is_healed() -> None:
    world = World(1)
    network = Network(world)
    network.cut(1, 2)
    assert sent(network, world, (1, 2), (2, 1)) == [(2, 1)]
    network.heal()
    assert sent(network, world, (1, 2)) == [(1, 2)]


def test_cut_loses_messages_that_are_on_their_way() -> None:
    world, seen = World(1), []
    network = Network(world)
    network.send(1, 2, "message", lambda: seen.append(1), None)
    network.cut(1, 2)
    world.run_until(100)
    assert seen == []


def test_messages_overtake_each_other_and_some_are_lost() -> None:
    world = World(1)
    network = Network(world)
    network.loss = 0.5
    links = [(number, 0) for number in range(1, 101)]
    arrived = sent(network, world, *links)
    assert 20 < len(arrived) < 80
    assert arrived != sorted(arrived)
