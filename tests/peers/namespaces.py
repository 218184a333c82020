"""Hosts on one machine: network namespaces on a bridge, between which packets can be lost one way.

    with running_network(["a", "b"]) as network:
        with network.inside("a"):
            subprocess.Popen(...)       # runs on host a
        network.lose("a", "b")          # what a sends to b is lost; what b sends to a arrives
        network.heal()

A host loses what it sends because it has a hardware address for the other host that nobody has, so
neither of them gets an error. Needs root, and `ip` (iproute2). The bridge is in a namespace of its
own: the network of the machine is not touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence

from tests.peers.cache import PeerMissing

_CLONE_NEWNET = 0x40000000
_NOBODY = "02:00:00:00:00:fe"
_SUBNET = "10.213.7"


class Network:
    def __init__(self, hosts: Sequence[str]) -> None:
        self._prefix = f"ms-{uuid.uuid4().hex[:6]}"
        self._numbers = {host: number for number, host in enumerate(hosts, 10)}
        self._lost: set[tuple[str, str]] = set()

    def address(self, host: str) -> str:
        return f"{_SUBNET}.{self._numbers[host]}"

    def create(self) -> None:
        switch = self._namespace("switch")
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for host, number in self._numbers.items():
            name, port = self._namespace(host), f"port{number}"
            _ip("netns", "add", name)
            ends = ["eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", switch]
            _ip("link", "add", *ends)
            _ip("-n", switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")

    def delete(self) -> None:
        """The devices go with the last process of each namespace."""
        for host in (*self._numbers, "switch"):
            with contextlib.suppress(PeerMissing):
                _ip("netns", "delete", self._namespace(host))

    def lose(self, sender: str, receiver: str) -> None:
        """Lose what one host sends to another."""
        self._lost.add((sender, receiver))
        entry = [self.address(receiver), "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent"]
        _ip("-n", self._namespace(sender), "neigh", "replace", *entry)

    def cut(self, one: str, other: str) -> None:
        """Lose what they send to each other."""
        self.lose(one, other)
        self.lose(other, one)

    def heal(self) -> None:
        while self._lost:
            sender, receiver = self._lost.pop()
            entry = [self.address(receiver), "dev", "eth0"]
            _ip("-n", self._namespace(sender), "neigh", "delete", *entry)

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """This thread, and all processes and threads that it starts meanwhile, are on the host."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        after = os.open(f"/run/netns/{self._namespace(host)}", os.O_RDONLY)
        try:
            _enter(after)
            yield
        finally:
            _enter(before)
            os.close(before)
            os.close(after)

    def _namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"


@contextlib.contextmanager
def running_network(hosts: Sequence[str]) -> Iterator[Network]:
    """Raises `PeerMissing` where namespaces cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise PeerMissing("network namespaces need root and `ip` (iproute2)")
    network = Network(hosts)
    try:
        network.create()
        yield network
    finally:
        network.delete()


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise PeerMissing(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
