"""Values of a bridge's file: each is checked, and a mistake is named with its table."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from millstream.errors import ConfigError
from millstream.metrics.threaded import parse_address

NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def flag_of(table: Mapping[str, Any], name: str, where: str, *, default: bool) -> bool:
    found = table.get(name, default)
    if not isinstance(found, bool):
        raise ConfigError(f"{where}: {name} must be true or false")
    return found


def udp_of(table: Mapping[str, Any], name: str, where: str) -> str:
    """HOST:PORT, where the host is an IPv4 address: groups have no names."""
    text = text_of(table, name, where)
    host, _ = parse_address(text)
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        raise ConfigError(f"{where}: {name} is {text!r}; give an IPv4 address and a port") from None
    return text


def interface_of(table: Mapping[str, Any], where: str) -> str:
    found = text_of(table, "interface", where, default="0.0.0.0")
    try:
        return str(ipaddress.IPv4Address(found))
    except ValueError:
        raise ConfigError(f"{where}: interface must be the IPv4 address of one") from None


def secret_of(given: Any, where: str, directory: Path) -> str:
    """A string, or the content of a file or of a variable of the environment."""
    if isinstance(given, str) and given:
        return given
    if isinstance(given, Mapping) and set(given) == {"file"}:
        try:
            return (directory / str(given["file"])).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{where}: {given['file']}: {error.strerror}") from None
    if isinstance(given, Mapping) and set(given) == {"env"}:
        found = os.environ.get(str(given["env"]))
        if not found:
            raise ConfigError(f"{where}: the variable {given['env']} is not set")
        return found
    raise ConfigError(f'{where}: give a string, {{ file = "..." }} or {{ env = "..." }}')


def refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, list(known), 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown name {name!r}{hint}")


def table_of(given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be a table")
    return given


def tables_of(
    given: Mapping[str, Any], kind: str, prefix: str = ""
) -> list[tuple[str, Mapping[str, Any]]]:
    found = []
    for name, table in table_of(given.get(kind, {}), f"[{prefix}{kind}]").items():
        where = f"[{prefix}{kind}.{name}]"
        if not NAME.fullmatch(name):
            raise ConfigError(f"{where}: use letters, digits, '.', '_' and '-' in names")
        found.append((name, table_of(table, where)))
    return found


def text_of(table: Mapping[str, Any], name: str, where: str, default: str | None = None) -> str:
    found = table.get(name, default)
    if not isinstance(found, str) or not found:
        raise ConfigError(f"{where}: {name} must be a string that is not empty")
    return found


def topic_of(table: Mapping[str, Any], where: str) -> str:
    found = text_of(table, "topic", where)
    if not _TOPIC.fullmatch(found):
        raise ConfigError(f"{where}: topic is {found!r}; use letters, digits, '.', '_' and '-'")
    return found


def texts_of(table: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    found = table.get(name, [])
    if not isinstance(found, list) or not all(isinstance(it, str) and it for it in found):
        raise ConfigError(f"{where}: {name} must be a list of strings")
    return tuple(found)


def one_of(
    table: Mapping[str, Any], name: str, where: str, known: tuple[str, ...], default: str
) -> str:
    found = table.get(name, default)
    if found not in known:
        raise ConfigError(f"{where}: {name} is {found!r}; it must be one of {', '.join(known)}")
    return str(found)


def number_of(
    table: Mapping[str, Any],
    name: str,
    where: str,
    default: float,
    least: float,
    most: float = float("inf"),
) -> float:
    found = table.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found <= most:
        limit = f"at least {least:g}" if most == float("inf") else f"{least:g} to {most:g}"
        raise ConfigError(f"{where}: {name} must be a number, {limit}")
    return found
