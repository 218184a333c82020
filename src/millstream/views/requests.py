"""Requests for views over HTTP: what an address and a body ask for. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from millstream.errors import MillstreamError, ViewError
from millstream.partitions import TopicPartition
from millstream.views.positions import parse_positions
from millstream.views.reading import View
from millstream.views.values import from_text

_PARAMETERS = {"at_least", "timeout", "low", "high", "limit", "descending", "after"}
_PARAMETERS_MAX = 32
_WORDS = {"true": True, "false": False}


class BadRequest(MillstreamError):
    """A request that is answered with this status."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Request:
    path: list[str]
    given: Mapping[str, str]
    body: bytes = b""
    content_type: str = ""

    @classmethod
    def parse(cls, address: str, body: bytes = b"", content_type: str = "") -> Request:
        """Raises `ViewError`."""
        try:
            parts = urlsplit(address)
            path = [unquote(it, errors="strict") for it in parts.path.split("/")[1:]]
            given = dict(
                parse_qsl(
                    parts.query,
                    keep_blank_values=True,
                    errors="strict",
                    max_num_fields=_PARAMETERS_MAX,
                )
            )
        except ValueError as error:
            raise ViewError(f"the address is wrong: {error}") from None
        for name in given:
            if name not in _PARAMETERS:
                known = ", ".join(sorted(_PARAMETERS))
                raise ViewError(f"there is no parameter {name}; there are {known}")
        return cls(path, given, body, content_type)

    def at_least(self) -> dict[TopicPartition, int]:
        return parse_positions(self.given.get("at_least", ""))

    def timeout(self, most: float) -> float:
        """How long to wait for the position, in seconds."""
        text = self.given.get("timeout")
        try:
            seconds = most if text is None else float(text)
        except ValueError:
            raise ViewError(f"timeout={text}: it must be a number of seconds") from None
        if not 0 <= seconds <= most:
            raise ViewError(f"timeout={text}: it must be between 0 and {most:g} seconds")
        return seconds

    def query(self) -> tuple[str, Sequence[Any]]:
        """The SELECT of the body, and its parameters. Raises `ViewError`."""
        try:
            text = self.body.decode()
        except UnicodeDecodeError:
            raise ViewError("the query is not UTF-8") from None
        if self.content_type.partition(";")[0].strip().lower() != "application/json":
            return text, ()
        try:
            found = json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ViewError(f"the body is not JSON: {error}") from None
        match found:
            case {"sql": str(sql), **rest} if set(rest) <= {"values"}:
                values = rest.get("values", [])
                if isinstance(values, list) and all(map(_is_scalar, values)):
                    return sql, values
        raise ViewError(
            'the body must be {"sql": "SELECT ...", "values": [...]}, with texts, numbers, '
            "booleans and nulls as values"
        )


def host_of(header: str) -> str | None:
    """The name or address in a `Host` header, without the port; None if there is none."""
    try:
        return urlsplit(f"//{header.strip()}").hostname
    except ValueError:
        return None


def is_address(name: str) -> bool:
    """Whether it is an address and no name: the owner of a name can let it point anywhere."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | Decimal)


def key_of(view: View, texts: Sequence[str]) -> list[Any]:
    """The values of a key. Those that are too many stay text, and are refused later."""
    columns = view.entry.key_columns
    values = [from_text(it, text) for it, text in zip(columns, texts, strict=False)]
    return [*values, *texts[len(columns) :]]


def range_of(
    view: View, request: Request, rows_max: int
) -> tuple[tuple[Any, ...] | None, tuple[Any, ...] | None, int, bool]:
    """Low, high, the limit, and whether rows are wanted in descending order. Raises `ViewError`."""
    text = request.given.get("limit", str(rows_max))
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(rows_max)):
        raise ViewError(f"limit={text}: it must be a number up to {rows_max}")
    if int(text) > rows_max:
        raise ViewError(f"limit={text}: at most {rows_max} rows are served")
    word = request.given.get("descending", "false").lower()
    if word not in _WORDS:
        raise ViewError(f"descending={word}: it must be true or false")
    low, high = (_bound(view, request.given.get(it)) for it in ("low", "high"))
    return low, high, int(text), _WORDS[word]


def _bound(view: View, text: str | None) -> tuple[Any, ...] | None:
    """The values of a key's first columns, which slashes separate."""
    if text is None:
        return None
    columns = view.entry.key_columns
    return tuple(key_of(view, text.split("/", len(columns) - 1)))
