"""Requests about quotas: what may be set for whom, and which entities a filter matches. Without
I/O; the errors are Kafka's."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from millstream.broker.quotas.limits import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Quotas,
)
from millstream.config.setting import INT_MAX, LONG_MAX
from millstream.coordination.cluster_security import QuotaEntity
from millstream.errors import ApiError, ErrorCode

ENTITY_TYPES = (USER, CLIENT_ID, IP)

# The largest value of each key, by the type that it has in Kafka; None: may be a fraction.
_USER_KEYS: Mapping[str, int | None] = {
    PRODUCER_BYTE_RATE: LONG_MAX,
    CONSUMER_BYTE_RATE: LONG_MAX,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_IP_KEYS: Mapping[str, int | None] = {CONNECTION_CREATION_RATE: INT_MAX}
_EPSILON = 1e-6


class Match(IntEnum):
    """What a component of a filter matches, with the protocol's numbers."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class Component(NamedTuple):
    entity_type: str
    match: int
    name: str | None


def check_entity(parts: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    """The entity of a request. Raises `ApiError`."""
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    types = [entity_type for entity_type, _ in parts]
    for entity_type, name in parts:
        if types.count(entity_type) > 1:
            raise _invalid(f"Invalid client quota entity, duplicate entity entry {entity_type}")
        if entity_type not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise _invalid(f"Empty {entity_type} not supported")
    if IP in types:
        if len(types) > 1:
            raise _invalid(
                "Invalid quota entity combination, IP entity shouldnot be combined with User or "
                "ClientId"
            )
        return frozenset({(IP, _address(parts[0][1]))})
    return frozenset(parts)


def check_values(
    entity: QuotaEntity, operations: Iterable[tuple[str, float | None]]
) -> dict[str, float | None]:
    """The quotas to set, or (None) to remove, for an entity. Raises `ApiError`."""
    keys = _IP_KEYS if any(entity_type == IP for entity_type, _ in entity) else _USER_KEYS
    checked: dict[str, float | None] = {}
    for key, value in operations:
        if key in checked:
            raise _invalid(f"Duplicate quota key {key} not updating quota for this entity")
        if key not in keys:
            raise _invalid(f"Invalid configuration key {key}")
        if value is not None:
            _check_value(key, value, keys[key])
        checked[key] = value
    return checked


def _check_value(key: str, value: float, largest: int | None) -> None:
    if not value > 0:  # nor NaN
        raise _invalid(f"Quota {key} must be greater than 0")
    if value == math.inf:
        raise _invalid(f"Quota {key} must be finite; remove it for no limit")
    if largest is None:
        return
    if value > largest:
        kind = "an INT" if largest == INT_MAX else "a LONG"
        raise _invalid(f"Proposed value for {key} is too large for {kind}.")
    if abs(int(value + _EPSILON) - value) > _EPSILON:
        raise _invalid(f"{key} cannot be a fractional value.")


def _address(name: str | None) -> str | None:
    """In the form in which addresses of clients are compared. Kafka takes host names as well, and
    looks them up; an address cannot mean something else tomorrow."""
    if name is None:
        return None
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        raise _invalid(f"{name} is not a valid IP or resolvable host.") from None


class QuotaFilter:
    """Matches entities. Raises `ApiError` for components that contradict each other."""

    def __init__(self, components: Iterable[Component], *, strict: bool) -> None:
        self._components: dict[str, Component] = {}
        self._is_strict = strict
        for component in components:
            self._add(component)
        if IP in self._components and len(self._components) > 1:
            raise _invalid(
                "Invalid entity filter component combination. IP filter component should not be "
                "used with user or clientId filter component."
            )

    def _add(self, component: Component) -> None:
        entity_type, match, name = component
        if not entity_type:
            raise _invalid("Invalid empty entity type.")
        if entity_type in self._components:
            raise _invalid(f"Entity type {entity_type} cannot appear more than once in the filter.")
        if entity_type not in ENTITY_TYPES:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {entity_type}")
        if match not in Match._value2member_map_:
            raise _invalid(f"Unknown match type {match}")
        if match == Match.EXACT and name is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match != Match.EXACT and name is not None:
            named = "MATCH_TYPE_DEFAULT" if match == Match.DEFAULT else "MATCH_TYPE_SPECIFIED"
            raise _invalid(f"Request specified {named}, but also specified a match string.")
        self._components[entity_type] = component

    def select(self, quotas: Quotas) -> Quotas:
        """The entities that match, with their quotas."""
        if not self._components:
            return {} if self._is_strict else quotas
        return {entity: values for entity, values in quotas.items() if self._matches(entity)}

    def _matches(self, entity: QuotaEntity) -> bool:
        parts = dict(entity)
        if self._is_strict and len(parts) != len(self._components):
            return False
        return all(
            entity_type in parts and (match == Match.ANY or parts[entity_type] == name)
            for entity_type, match, name in self._components.values()
        )


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
