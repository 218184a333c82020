"""Kafka's messages, from kio's schemas, independent of their versions.

kio has one class per API *and version*, each in its own module that takes milliseconds to import.
Handlers need neither: they are written once, against the newest version of a request.

    decode_request   bytes of any version  ->  the newest version's class: a field that the older
                     version did not have takes the newest one's default
    encode_response  a plain dict of fields  ->  bytes of the version asked for: a field that the
                     version does not know is left out, one that is not given takes its default

`encode_request` and `decode_response` are the reverse, for Millstream's own clients. kio encodes;
`entities.py` decodes, and does not trust lengths. Modules are imported on first use of an API in a
version; those of our own APIs are in `protocol.own`. Durations are `timedelta` in decoded requests
(kio's choice: `request.session_timeout`); responses may give them as int milliseconds, error codes
as our `ErrorCode`, and arrays as lists.
"""

from __future__ import annotations

import dataclasses
import io
import sys
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast, get_args, get_type_hints

from millstream.errors import ErrorCode, ProtocolError
from millstream.protocol.apis import APIS, OWN_API_KEY_MIN
from millstream.protocol.entities import TOO_SHORT, Reader, make_reader, nested_entity

Fields: TypeAlias = Mapping[str, Any]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_ERROR_CODES = {int(code): code for code in ErrorCode}
_OWN_APIS = frozenset(api.name for api in APIS.values() if api.key >= OWN_API_KEY_MIN)
_UUID_ZERO = uuid.UUID(int=0)
_EPOCH = datetime.fromtimestamp(0, UTC)
_importing = Lock()


def _memoize(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """`functools.cache` that keeps the function's type: its own wants `Hashable` of classes too."""
    return cast(Callable[_Parameters, _Result], cache(function))


def milliseconds(duration: timedelta) -> int:
    """A decoded duration in milliseconds."""
    return duration // timedelta(milliseconds=1)


def decode_request(api: str, version: int, newest: int, body: memoryview | bytes) -> Any:
    """Parse a request's body (what follows its header) into the newest version's class.

    Raises `ProtocolError` for a malformed request.
    """
    entity = _parse(_entity_class(api, version, "request"), body)
    if version == newest:
        return entity
    return _converter(type(entity), _entity_class(api, newest, "request"))(entity)


def decode_request_exactly(api: str, version: int, body: memoryview | bytes) -> Any:
    """Parse into this version's class: for the few APIs whose versions differ in structure."""
    return _parse(_entity_class(api, version, "request"), body)


def encode_response(api: str, version: int, fields: Fields) -> bytes:
    """The response's body (what follows its header) in the given version."""
    cls = _entity_class(api, version, "response")
    buffer = io.BytesIO()
    _writer(cls)(buffer, _builder(cls)(fields))
    return buffer.getvalue()


def encode_request(api: str, version: int, fields: Fields) -> bytes:
    """The request's body in the given version, from plain fields as in a response."""
    cls = _entity_class(api, version, "request")
    buffer = io.BytesIO()
    _writer(cls)(buffer, _builder(cls)(fields))
    return buffer.getvalue()


def decode_response(api: str, version: int, body: memoryview | bytes) -> Any:
    """Parse a response's body in this version; records are a view, not a copy."""
    return _parse(_entity_class(api, version, "response"), body)


def is_flexible(api: str, version: int) -> bool:
    """Whether this version uses compact strings and tagged fields (and request header 2)."""
    return bool(_entity_class(api, version, "request").__flexible__)


@_memoize
def begins_with_throttle_time(api: str, version: int) -> bool:
    """Whether it is the first field of the response in this version."""
    fields = dataclasses.fields(_entity_class(api, version, "response"))
    return bool(fields) and fields[0].name == "throttle_time"


def _parse(cls: type[Any], body: memoryview | bytes) -> Any:
    name = f"{cls.__name__} v{cls.__version__}"
    try:
        entity, _ = _reader(cls)(body, 0)  # like Kafka, ignore bytes that follow
    except TOO_SHORT:
        raise ProtocolError(f"malformed {name}: truncated") from None
    except ProtocolError as error:
        raise ProtocolError(f"malformed {name}: {error}") from None
    return entity


@_memoize
def _entity_class(api: str, version: int, kind: str) -> type[Any]:
    # kio's packages import their own modules, which others import by name: two threads that start
    # at both ends deadlock, and Python fails one of them.
    with _importing:
        _load_kio()
        if api in _OWN_APIS:
            module = import_module(f"millstream.protocol.own.{api}")
        else:
            module = import_module(f"kio.schema.{api}.v{version}.{kind}")
    name = "".join(part.capitalize() for part in api.split("_")) + kind.capitalize()
    cls: type[Any] = getattr(module, name)
    return cls


@_memoize
def _load_kio() -> None:
    """Import kio's base modules, without Hypothesis.

    kio imports Hypothesis if it is installed, as in most test environments, for strategies that a
    broker never uses: 0.4 s on the event loop, and 20 MB.
    """
    absent = "hypothesis" not in sys.modules
    if absent:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]  # importing it now fails
    try:
        import_module("kio.static.primitive")
    finally:
        if absent:
            del sys.modules["hypothesis"]


@_memoize
def _reader(cls: type[Any]) -> Reader:
    return make_reader(cls)


@_memoize
def _writer(cls: type[Any]) -> Callable[[io.BytesIO, Any], None]:
    from kio.serial import entity_writer

    return entity_writer(cls)


@_memoize
def _hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def _nested(cls: type[Any], field: str) -> tuple[type[Any] | None, bool]:
    """The entity class a field holds, if any, and whether the field is an array."""
    return nested_entity(_hints(cls)[field])


def _default(cls: type[Any], field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    hint = _hints(cls)[field.name]
    if type(None) in get_args(hint):
        return None
    _, is_array = _nested(cls, field.name)
    if is_array:
        return ()
    match str(field.metadata.get("kafka_type", "")):
        case "string":
            return ""
        case "bytes" | "records":
            return b""
        case "bool":
            return False
        case "uuid":
            return _UUID_ZERO
        case "error_code":
            return ErrorCode.NONE
        case kind if kind.startswith("timedelta"):
            return timedelta(0)
        case "datetime_i64":
            return _EPOCH
        case "":
            raise ProtocolError(f"missing field: {cls.__name__}.{field.name}")
        case _:
            return 0


@_memoize
def _converter(source: type[Any], target: type[Any]) -> Callable[[Any], Any]:
    """Copies an entity of one version into the class of another, field by field."""
    known = {field.name for field in dataclasses.fields(source)}
    copies: list[tuple[str, Callable[[Any], Any] | None, bool]] = []
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(target):
        if field.name not in known:
            defaults[field.name] = _default(target, field)
            continue
        target_nested, is_array = _nested(target, field.name)
        source_nested, _ = _nested(source, field.name)
        nested = None
        if target_nested is not None and source_nested is not None:
            nested = _converter(source_nested, target_nested)
        copies.append((field.name, nested, is_array))

    def convert(entity: Any) -> Any:
        values = dict(defaults)
        for name, nested, is_array in copies:
            value = getattr(entity, name)
            if nested is not None and value is not None:
                value = tuple(map(nested, value)) if is_array else nested(value)
            values[name] = value
        return target(**values)

    return convert


@_memoize
def _builder(cls: type[Any]) -> Callable[[Fields], Any]:
    """Builds an entity of the class from plain fields, ignoring unknown ones."""
    plan = [(field.name, _field_builder(cls, field), field) for field in dataclasses.fields(cls)]

    def build(fields: Fields) -> Any:
        values: dict[str, Any] = {}
        for name, convert, field in plan:
            if name not in fields:
                values[name] = _default(cls, field)
                continue
            value = fields[name]
            values[name] = value if convert is None or value is None else convert(value)
        return cls(**values)

    return build


def _error_code(value: int) -> ErrorCode:
    return value if isinstance(value, ErrorCode) else _ERROR_CODES[value]


def _field_builder(cls: type[Any], field: dataclasses.Field[Any]) -> Callable[[Any], Any] | None:
    nested, is_array = _nested(cls, field.name)
    if nested is not None:
        build = _builder(nested)
        return (lambda items: tuple(map(build, items))) if is_array else build
    if is_array:
        return tuple
    kind = str(field.metadata.get("kafka_type", ""))
    if kind.startswith("timedelta"):
        return lambda value: (
            value if isinstance(value, timedelta) else timedelta(milliseconds=value)
        )
    if kind == "error_code":
        return _error_code
    if kind == "datetime_i64":
        return lambda value: (
            value if isinstance(value, datetime) else _EPOCH + timedelta(milliseconds=value)
        )
    return None
