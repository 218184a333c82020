"""Quotas of a cluster's clients: list, set, remove; rates as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from millstream.admin.errors import InvalidArgument
from millstream.client.cluster import Cluster, check

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT = 0, 1  # how a filter matches
DEFAULT_NAME = "<default>"
BYTE_RATES = ("producer_byte_rate", "consumer_byte_rate")
KEYS = {
    "producer_byte_rate": "Produce",
    "consumer_byte_rate": "Fetch",
    "request_percentage": "Requests",
    "controller_mutation_rate": "Mutations",
    "connection_creation_rate": "Connections",
}
UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*?)(?:/s)?")
_ORDER = [USER, CLIENT_ID, IP]

Entity: TypeAlias = dict[str, str | None]  # None: the default
Quotas: TypeAlias = dict[str, float]


def describe_quotas(cluster: Cluster, wanted: Entity) -> list[tuple[Entity, Quotas]]:
    """All quotas that have these parts in their entity; none given: all. Raises `ApiError`."""
    components = [
        {"entity_type": kind, "match_type": DEFAULT if name is None else EXACT, "match": name}
        for kind, name in wanted.items()
    ]
    answer = cluster.any_connection().call(
        "describe_client_quotas", {"components": components, "strict": False}
    )
    check(answer.error_code, answer.error_message or "", "describe_client_quotas")
    found = []
    for entry in answer.entries or ():
        entity: Entity = {part.entity_type: part.entity_name for part in entry.entity}
        ordered = dict(sorted(entity.items(), key=lambda part: _ORDER.index(part[0])))
        found.append((ordered, {value.key: value.value for value in entry.values}))
    return sorted(found, key=lambda it: [(kind, name or "") for kind, name in it[0].items()])


def alter_quotas(cluster: Cluster, entity: Entity, quotas: Mapping[str, float | None]) -> None:
    """Set quotas, or remove those that are None."""
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None}
            for key, value in quotas.items()
        ],
    }
    answer = cluster.any_connection().call(
        "alter_client_quotas", {"entries": [entry], "validate_only": False}
    )
    (result,) = answer.entries
    check(result.error_code, result.error_message or "", "alter_client_quotas")


def parse_rate(what: str, text: str) -> float:
    """Bytes per second from e.g. 1MB, 512 KiB or 1000."""
    found = _RATE.fullmatch(text.strip())
    unit = UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise InvalidArgument(
            f"{what} {text!r}: write it as bytes per second, e.g. 500000, 1MB or 1MiB"
        )
    return float(round(float(found[1]) * unit))


def readable(key: str, value: float) -> str:
    """A quota for people."""
    if key in BYTE_RATES:
        return f"{_bytes(value)}/s"
    return f"{value:g} %" if key == "request_percentage" else f"{value:g}/s"


def _bytes(count: float) -> str:
    for unit in ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB"):
        factor = UNITS[unit.upper()]
        if count >= factor and count % factor == 0:
            return f"{count / factor:g} {unit}"
    for unit in ("TB", "GB", "MB", "kB"):
        if count >= UNITS[unit.upper()]:
            return f"{count / UNITS[unit.upper()]:.4g} {unit}"
    return f"{count:g} B"


def describe_entity(entity: Entity) -> str:
    """An entity for people: `user alice, client id <default>`."""
    names = {USER: "user", CLIENT_ID: "client id", IP: "address"}
    return ", ".join(
        f"{names.get(kind, kind)} {DEFAULT_NAME if name is None else name}"
        for kind, name in entity.items()
    )
