"""UDP sockets: for a multicast group on one interface, or for an ordinary address."""

from __future__ import annotations

import ipaddress
import socket
import struct

from millstream.bridges.udp import grow_buffer
from millstream.errors import MillstreamError
from millstream.metrics.threaded import parse_address

BUFFER_BYTES = 16 * 1024 * 1024


def receiving(address: str, interface: str) -> socket.socket:
    """A socket that receives what is sent to HOST:PORT; a group is joined on the interface."""
    host, port = parse_address(address)
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        grow_buffer(made, BUFFER_BYTES)
        if is_group(host):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        if is_group(host):
            joined = struct.pack("4s4s", socket.inet_aton(host), socket.inet_aton(interface))
            made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
    except OSError as error:
        made.close()
        raise MillstreamError(f"cannot receive at {address}: {error.strerror}") from error
    return made


def sending(interface: str, ttl: int) -> socket.socket:
    """A socket that sends to groups through the interface."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
    return made


def is_group(host: str) -> bool:
    return ipaddress.ip_address(host).is_multicast
