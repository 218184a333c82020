"""Settings of topics and brokers, with the source of each value, and changes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from millstream.admin.waiting import wait_until_shown
from millstream.client.cluster import check
from millstream.errors import ApiError, ErrorCode
from millstream.models import dataclass

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster

SET, DELETE, APPEND = 0, 1, 2
TOPICS_PER_REQUEST = 50


class Resource(IntEnum):
    """What has settings, with the wire's numbers."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


SOURCES = {
    1: "topic",
    2: "broker, dynamic",
    3: "all brokers, dynamic",
    4: "broker",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}
OWN_SOURCES = (1, 2, 8)  # set for the resource itself, so that it can be reset
TYPES = {
    1: "boolean",
    2: "string",
    3: "int",
    4: "short",
    5: "long",
    6: "double",
    7: "list",
    8: "class",
    9: "password",
}


@dataclass(frozen=True, slots=True)
class Synonym:
    """A value that would apply if those before it were not set."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str | None  # None: secret, or not set
    source: str
    is_own: bool  # set for this topic, broker or group itself
    is_sensitive: bool = False
    is_read_only: bool = False
    type: str = ""
    documentation: str = ""
    synonyms: tuple[Synonym, ...] = ()


def settings_of(
    cluster: Cluster, kind: Resource, name: str, *, documentation: bool = False
) -> list[Setting]:
    """All settings of one topic, broker or group, by name. Raises `ApiError`."""
    asked = [{"resource_type": int(kind), "resource_name": name, "configuration_keys": None}]
    fields = {
        "resources": asked,
        "include_synonyms": True,
        "include_documentation": documentation,
    }
    result = _ask(cluster, kind, name, "describe_configs", fields).results[0]
    _check(result, f"the settings of {kind.name.lower()} {name}", "describe_configs")
    return sorted(map(_setting, result.configs), key=lambda it: it.name)


def settings_of_topics(
    cluster: Cluster, topics: Iterable[str], names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """These settings of many topics; topics whose settings the user may not see are missing."""
    found: dict[str, dict[str, str]] = {}
    wanted = list(topics)
    for first in range(0, len(wanted), TOPICS_PER_REQUEST):
        asked = [
            {
                "resource_type": int(Resource.TOPIC),
                "resource_name": it,
                "configuration_keys": list(names),
            }
            for it in wanted[first : first + TOPICS_PER_REQUEST]
        ]
        answer = cluster.retrying(
            lambda asked=asked: cluster.any_connection().call(  # type: ignore[misc]
                "describe_configs", {"resources": asked}
            )
        )
        for result in answer.results:
            if result.error_code is ErrorCode.NONE:
                found[str(result.resource_name)] = {
                    str(it.name): str(it.value) for it in result.configs if it.value is not None
                }
    return found


def alter_settings(
    cluster: Cluster,
    kind: Resource,
    name: str,
    changes: Mapping[str, str | None],
    *,
    dry_run: bool = False,
) -> None:
    """Set these values; None resets to the value that applies otherwise. Raises `ApiError`."""
    configs = [
        {"name": key, "config_operation": DELETE if value is None else SET, "value": value}
        for key, value in changes.items()
    ]
    resource = {"resource_type": int(kind), "resource_name": name, "configs": configs}
    fields = {"resources": [resource], "validate_only": dry_run}
    answer = _ask(cluster, kind, name, "incremental_alter_configs", fields)
    what = f"cannot change the settings of {kind.name.lower()} {name}"
    _check(answer.responses[0], what, "incremental_alter_configs")
    if not dry_run:
        wait_until_shown(lambda: _is_applied(cluster, kind, name, changes))


def _is_applied(
    cluster: Cluster, kind: Resource, name: str, changes: Mapping[str, str | None]
) -> bool:
    try:
        found = {it.name: it for it in settings_of(cluster, kind, name)}
    except ApiError:  # the user may change what the user may not see
        return True
    return all(
        not found[key].is_own if value is None else _same(found[key].value, value)
        for key, value in changes.items()
        if key in found
    )


def _same(shown: str | None, given: str) -> bool:
    """Brokers may show a value in another way than it was given: ` 10`, `TRUE`, `a, b`."""
    if shown is None:  # a secret
        return True
    return shown.replace(" ", "").lower() == given.replace(" ", "").lower()


def append_to_setting(
    cluster: Cluster,
    kind: Resource,
    name: str,
    setting: str,
    items: Sequence[str],
    *,
    dry_run: bool = False,
) -> None:
    """Add to a setting that is a list, whatever others add at the same time. Raises `ApiError`."""
    change = {"name": setting, "config_operation": APPEND, "value": ",".join(items)}
    resource = {"resource_type": int(kind), "resource_name": name, "configs": [change]}
    fields = {"resources": [resource], "validate_only": dry_run}
    answer = _ask(cluster, kind, name, "incremental_alter_configs", fields)
    what = f"cannot add to {setting} of {kind.name.lower()} {name}"
    _check(answer.responses[0], what, "incremental_alter_configs")


def _ask(cluster: Cluster, kind: Resource, name: str, api: str, fields: dict[str, Any]) -> Any:
    """A broker is asked about itself; any one about the rest."""
    brokers = cluster.broker_ids(seconds_old_max=10.0)
    if kind is Resource.BROKER and name.isdigit():
        return cluster.ask_broker(int(name), api, fields)
    return cluster.ask_broker(brokers[0], api, fields)


def _check(result: Any, what: str, api: str) -> None:
    detail = result.error_message or result.error_code.description
    check(result.error_code, f"{what}: {detail}", api)


def _setting(it: Any) -> Setting:
    source = int(it.config_source)
    return Setting(
        str(it.name),
        it.value,
        SOURCES.get(source, str(source)),
        source in OWN_SOURCES,
        bool(it.is_sensitive),
        bool(it.read_only),
        TYPES.get(int(getattr(it, "config_type", 0)), ""),
        getattr(it, "documentation", None) or "",
        tuple(
            Synonym(str(one.name), one.value, SOURCES.get(int(one.source), ""))
            for one in it.synonyms
        ),
    )
