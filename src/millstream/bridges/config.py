"""The file of a bridge: what comes in, what goes out.

    name = "edge"
    broker = "127.0.0.1:9092"
    client_config = "client.properties"     # a Kafka client's settings; relative to this file
    metrics = "127.0.0.1:9410"              # Prometheus, /health, /ready
    publish_status = true                   # for the console and `millstream bridges`

    [http]
    listen = "127.0.0.1:8082"
    produce = ["orders", "clicks-*"]        # topics that may be written; none by default
    read = ["orders"]                       # topics that may be streamed; none by default
    token = { env = "BRIDGE_TOKEN" }        # or { file = "token.txt" }, or a string
    origins = ["https://shop.example"]      # pages of other sites that may call

    [hooks.github]                          # POST /hooks/github
    topic = "pushes"
    signature = "github"                    # standard, github, stripe or none
    secrets = [{ env = "GITHUB_SECRET" }]   # several while one replaces another

    [webhooks.billing]                      # Standard Webhooks, as the share group webhooks.billing
    topics = ["orders"]
    url = "https://billing.example/hooks"
    secrets = [{ file = "billing.secret" }]
    allow = ["10.0.0.0/8"]                  # private networks that may be called; none by default

    [statsd.app]
    listen = "127.0.0.1:8125"
    topic = "metrics"
    interval_seconds = 10                   # aggregates; 0: each sample is a record

    [mold.in.prices]                        # MoldUDP64 to a topic
    listen = "239.1.1.1:26477"
    request = "10.0.0.7:26478"              # the re-request server
    topic = "prices"

    [mold.out.trades]                       # a partition as MoldUDP64
    topic = "trades"
    to = "239.1.1.2:26477"
    requests = "10.0.0.5:26479"             # where re-requests are answered

    [zeromq.in.jobs]                        # ZeroMQ to a topic
    type = "pull"                           # or "sub"
    bind = ["tcp://10.0.0.5:5557"]          # or connect
    topic = "jobs"

    [zeromq.out.trades]                     # a topic to ZeroMQ
    type = "pub"                            # or "push"
    bind = ["tcp://10.0.0.5:5556"]
    topic = "trades"

An unknown name is an error that suggests the nearest.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from millstream.bridges.http.signatures import VERIFIERS, key_of
from millstream.client.security import read_connection
from millstream.errors import ConfigError
from millstream.metrics.threaded import parse_address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

BODY_BYTES_MAX = 8 * 1024 * 1024
STREAMS_MAX = 32
FORMATS = ("value", "cloudevents")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TOP = (
    "name", "broker", "client_config", "metrics", "publish_status", "http", "hooks", "webhooks",
    "statsd", "mold", "zeromq",
)  # fmt: skip
_TRANSPORT = re.compile(r"tcp://.+:([0-9]{1,5}|\*)|ipc://.+")


@dataclass(frozen=True)
class HookConfig:
    """Where webhooks of one sender go, and how they are verified."""

    topic: str
    signature: str
    keys: tuple[bytes, ...] = field(repr=False)
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class HttpConfig:
    """The HTTP server."""

    listen: str
    produce: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()
    body_bytes_max: int = BODY_BYTES_MAX
    streams_max: int = STREAMS_MAX
    hooks: Mapping[str, HookConfig] = field(default_factory=dict)


@dataclass(frozen=True)
class WebhookConfig:
    """An endpoint that gets the records of topics."""

    name: str
    topics: tuple[str, ...]
    url: str
    keys: tuple[bytes, ...] = field(repr=False)
    allow: tuple[Network, ...] = ()
    format: str = "value"
    timeout_seconds: float = 15.0
    parallel: int = 4
    attempts: int = 10
    backoff_seconds: float = 300.0
    dead_letters: str = ""
    start: str = "latest"

    @property
    def group(self) -> str:
        return f"webhooks.{self.name}"


@dataclass(frozen=True)
class StatsdConfig:
    """A port for StatsD."""

    name: str
    listen: str
    topic: str
    interval_seconds: float = 10.0
    buffer_bytes: int = 4 * 1024 * 1024


@dataclass(frozen=True)
class MoldInConfig:
    """A stream of MoldUDP64 that goes to a topic."""

    name: str
    listen: str
    topic: str
    request: str | None = None
    interface: str = "0.0.0.0"


@dataclass(frozen=True)
class MoldOutConfig:
    """A partition that is published as MoldUDP64."""

    name: str
    topic: str
    to: str
    requests: str | None = None
    interface: str = "0.0.0.0"
    partition: int = 0
    session: str = ""
    start: str = "latest"
    ttl: int = 1


@dataclass(frozen=True)
class ZeromqInConfig:
    """A SUB or PULL socket whose messages go to a topic."""

    name: str
    type: str
    topic: str
    bind: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    shared: bool = False
    partition: int = 0
    hwm: int = 1_000
    message_bytes_max: int = 1024 * 1024


@dataclass(frozen=True)
class ZeromqOutConfig:
    """A PUB or PUSH socket that sends the records of a topic."""

    name: str
    type: str
    topic: str
    bind: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    numbered: bool = True
    start: str = "latest"
    hwm: int = 1_000

    @property
    def group(self) -> str:
        return f"zeromq.{self.name}"


@dataclass(frozen=True)
class BridgeConfig:
    """A file, checked."""

    name: str
    broker: str
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    metrics: str | None = None
    publish_status: bool = True
    http: HttpConfig | None = None
    webhooks: tuple[WebhookConfig, ...] = ()
    statsd: tuple[StatsdConfig, ...] = ()
    mold_in: tuple[MoldInConfig, ...] = ()
    mold_out: tuple[MoldOutConfig, ...] = ()
    zeromq_in: tuple[ZeromqInConfig, ...] = ()
    zeromq_out: tuple[ZeromqOutConfig, ...] = ()

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a Kafka client, with librdkafka's names."""
        return {**self.kafka, "bootstrap.servers": self.broker}


def load_config(path: Path, broker: str | None = None) -> BridgeConfig:
    """The bridge of a file; `broker` replaces that of the file. Raises `ConfigError`."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return parse_config(given if broker is None else given | {"broker": broker}, path.parent)


def parse_config(given: Mapping[str, Any], directory: Path = Path()) -> BridgeConfig:
    """The bridge that a parsed file declares; paths in it are relative to `directory`."""
    _refuse_unknown(given, _TOP, "bridge")
    kafka, broker = _connection(given, directory)
    name = _text(given, "name", "bridge", default="bridge")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"bridge: name is {name!r}; use letters, digits, '.', '_' and '-'")
    mold = _table(given.get("mold", {}), "[mold]")
    _refuse_unknown(mold, ("in", "out"), "[mold]")
    zeromq = _table(given.get("zeromq", {}), "[zeromq]")
    _refuse_unknown(zeromq, ("in", "out"), "[zeromq]")
    metrics = given.get("metrics")
    if metrics is not None:
        parse_address(_text(given, "metrics", "bridge"))
    found = BridgeConfig(
        name=name,
        broker=broker,
        kafka=kafka,
        metrics=metrics,
        publish_status=_flag(given, "publish_status", "bridge", default=True),
        http=_http(given, directory),
        webhooks=tuple(_webhook(*it, directory) for it in _tables(given, "webhooks")),
        statsd=tuple(_statsd(*it) for it in _tables(given, "statsd")),
        mold_in=tuple(_mold_in(*it) for it in _tables(mold, "in", "mold.")),
        mold_out=tuple(_mold_out(*it) for it in _tables(mold, "out", "mold.")),
        zeromq_in=tuple(_zeromq_in(*it) for it in _tables(zeromq, "in", "zeromq.")),
        zeromq_out=tuple(_zeromq_out(*it) for it in _tables(zeromq, "out", "zeromq.")),
    )
    parts = (
        found.webhooks, found.statsd, found.mold_in, found.mold_out, found.zeromq_in,
        found.zeromq_out,
    )  # fmt: skip
    if found.http is None and not any(parts):
        raise ConfigError(
            "bridge: nothing to do; give [http], [webhooks.NAME], [statsd.NAME], [mold.in.NAME], "
            "[mold.out.NAME], [zeromq.in.NAME] or [zeromq.out.NAME]"
        )
    return found


def _connection(given: Mapping[str, Any], directory: Path) -> tuple[dict[str, str], str]:
    kafka: dict[str, str] = {}
    broker = given.get("broker")
    if "client_config" in given:
        file = directory / Path(_text(given, "client_config", "bridge")).expanduser()
        kafka, servers = read_connection(file)
        broker = broker or servers
    if not isinstance(broker, str) or not broker:
        raise ConfigError("bridge: broker must be given, as HOST:PORT,...")
    return kafka, broker


def _http(given: Mapping[str, Any], directory: Path) -> HttpConfig | None:
    hooks = {name: _hook(name, it, directory) for name, it in _tables(given, "hooks")}
    table = given.get("http")
    if table is None:
        if hooks:
            raise ConfigError("bridge: hooks need [http] with listen")
        return None
    where = "[http]"
    known = ("listen", "produce", "read", "token", "origins", "body_bytes_max", "streams_max")
    table = _table(table, where)
    _refuse_unknown(table, known, where)
    listen = _text(table, "listen", where)
    host, _ = parse_address(listen)
    token = _secret(table["token"], f"{where}: token", directory) if "token" in table else None
    found = HttpConfig(
        listen=listen,
        produce=_texts(table, "produce", where),
        read=_texts(table, "read", where),
        token=token,
        origins=_texts(table, "origins", where),
        body_bytes_max=int(_number(table, "body_bytes_max", where, BODY_BYTES_MAX, 1)),
        streams_max=int(_number(table, "streams_max", where, STREAMS_MAX, 0)),
        hooks=hooks,
    )
    if token is None and (found.produce or found.read) and not _is_loopback(host):
        raise ConfigError(f"{where}: {listen} can be reached from outside; give a token")
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hook(name: str, table: Mapping[str, Any], directory: Path) -> HookConfig:
    where = f"[hooks.{name}]"
    _refuse_unknown(table, ("topic", "signature", "secrets", "headers"), where)
    kind = _one_of(table, "signature", where, tuple(VERIFIERS), "standard")
    keys = _keys(table, where, directory, kind)
    headers = tuple(it.lower() for it in _texts(table, "headers", where))
    return HookConfig(_topic(table, where), kind, keys, headers)


def _webhook(name: str, table: Mapping[str, Any], directory: Path) -> WebhookConfig:
    where = f"[webhooks.{name}]"
    known = (
        "topics", "url", "secrets", "allow", "format", "timeout_seconds", "parallel", "attempts",
        "backoff_seconds", "dead_letters", "start",
    )  # fmt: skip
    _refuse_unknown(table, known, where)
    topics = _texts(table, "topics", where)
    if not topics:
        raise ConfigError(f"{where}: topics must name at least one topic")
    return WebhookConfig(
        name=name,
        topics=topics,
        url=_url(table, where),
        keys=_keys(table, where, directory, "standard"),
        allow=_networks(table, where),
        format=_one_of(table, "format", where, FORMATS, "value"),
        timeout_seconds=_number(table, "timeout_seconds", where, 15.0, 0.1, 25.0),
        parallel=int(_number(table, "parallel", where, 4, 1, 64)),
        attempts=int(_number(table, "attempts", where, 10, 2, 10)),
        backoff_seconds=_number(table, "backoff_seconds", where, 300.0, 0, 86_400),
        dead_letters=_text(table, "dead_letters", where, default=f"dlq.webhooks.{name}"),
        start=_one_of(table, "start", where, ("earliest", "latest"), "latest"),
    )


def _url(table: Mapping[str, Any], where: str) -> str:
    url = _text(table, "url", where)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ConfigError(f"{where}: url must be https://HOST/PATH, without a user")
    if parts.scheme == "http" and not _networks(table, where):
        raise ConfigError(f"{where}: http is for addresses in `allow` only; use https")
    return url


def _networks(table: Mapping[str, Any], where: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(it) for it in _texts(table, "allow", where))
    except ValueError as error:
        raise ConfigError(f"{where}: allow: {error}") from None


def _statsd(name: str, table: Mapping[str, Any]) -> StatsdConfig:
    where = f"[statsd.{name}]"
    _refuse_unknown(table, ("listen", "topic", "interval_seconds", "buffer_bytes"), where)
    listen = _text(table, "listen", where)
    parse_address(listen)
    return StatsdConfig(
        name,
        listen,
        _topic(table, where),
        _number(table, "interval_seconds", where, 10.0, 0, 3600),
        int(_number(table, "buffer_bytes", where, 4 * 1024 * 1024, 4096)),
    )


def _mold_in(name: str, table: Mapping[str, Any]) -> MoldInConfig:
    where = f"[mold.in.{name}]"
    _refuse_unknown(table, ("listen", "topic", "request", "interface"), where)
    request = _udp(table, "request", where) if "request" in table else None
    return MoldInConfig(
        name, _udp(table, "listen", where), _topic(table, where), request, _interface(table, where)
    )


def _mold_out(name: str, table: Mapping[str, Any]) -> MoldOutConfig:
    where = f"[mold.out.{name}]"
    known = ("topic", "to", "requests", "interface", "partition", "session", "start", "ttl")
    _refuse_unknown(table, known, where)
    return MoldOutConfig(
        name,
        _topic(table, where),
        _udp(table, "to", where),
        _udp(table, "requests", where) if "requests" in table else None,
        _interface(table, where),
        int(_number(table, "partition", where, 0, 0)),
        _text(table, "session", where, default=name),
        _one_of(table, "start", where, ("earliest", "latest"), "latest"),
        int(_number(table, "ttl", where, 1, 0, 255)),
    )


def _zeromq_in(name: str, table: Mapping[str, Any]) -> ZeromqInConfig:
    where = f"[zeromq.in.{name}]"
    known = (
        "type", "topic", "bind", "connect", "subscribe", "shared", "partition", "hwm",
        "message_bytes_max",
    )  # fmt: skip
    _refuse_unknown(table, known, where)
    found = ZeromqInConfig(
        name,
        _one_of(table, "type", where, ("sub", "pull"), ""),
        _topic(table, where),
        *_endpoints(table, where),
        _texts(table, "subscribe", where),
        _flag(table, "shared", where, default=False),
        int(_number(table, "partition", where, 0, 0)),
        _hwm(table, where),
        int(_number(table, "message_bytes_max", where, 1024 * 1024, 1, 16 * 1024 * 1024)),
    )
    if found.type != "sub" and found.subscribe:
        raise ConfigError(f'{where}: subscribe is for type = "sub"')
    if found.type != "pull" and found.shared:
        raise ConfigError(f'{where}: shared is for type = "pull"; each subscriber gets everything')
    return found


def _zeromq_out(name: str, table: Mapping[str, Any]) -> ZeromqOutConfig:
    where = f"[zeromq.out.{name}]"
    known = ("type", "topic", "bind", "connect", "numbered", "start", "hwm")
    _refuse_unknown(table, known, where)
    return ZeromqOutConfig(
        name,
        _one_of(table, "type", where, ("pub", "push"), ""),
        _topic(table, where),
        *_endpoints(table, where),
        _flag(table, "numbered", where, default=True),
        _one_of(table, "start", where, ("earliest", "latest"), "latest"),
        _hwm(table, where),
    )


def _hwm(table: Mapping[str, Any], where: str) -> int:
    """0 would be "without limit" for ZeroMQ, and is refused."""
    return int(_number(table, "hwm", where, 1_000, 1, 1_000_000))


def _endpoints(table: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = _texts(table, "bind", where), _texts(table, "connect", where)
    if not any(found):
        raise ConfigError(f'{where}: give bind or connect, as ["tcp://HOST:PORT"]')
    for each in (*found[0], *found[1]):
        if not _TRANSPORT.fullmatch(each):
            raise ConfigError(f"{where}: {each!r} is no tcp://HOST:PORT and no ipc://PATH")
    return found


def _flag(table: Mapping[str, Any], name: str, where: str, *, default: bool) -> bool:
    found = table.get(name, default)
    if not isinstance(found, bool):
        raise ConfigError(f"{where}: {name} must be true or false")
    return found


def _udp(table: Mapping[str, Any], name: str, where: str) -> str:
    """HOST:PORT, where the host is an IPv4 address: groups have no names."""
    text = _text(table, name, where)
    host, _ = parse_address(text)
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        raise ConfigError(f"{where}: {name} is {text!r}; give an IPv4 address and a port") from None
    return text


def _interface(table: Mapping[str, Any], where: str) -> str:
    found = _text(table, "interface", where, default="0.0.0.0")
    try:
        return str(ipaddress.IPv4Address(found))
    except ValueError:
        raise ConfigError(f"{where}: interface must be the IPv4 address of one") from None


def _keys(table: Mapping[str, Any], where: str, directory: Path, kind: str) -> tuple[bytes, ...]:
    given = table.get("secrets", [])
    if not isinstance(given, list) or (not given and kind != "none"):
        raise ConfigError(f"{where}: secrets must be a list with at least one secret")
    try:
        return tuple(key_of(kind, _secret(it, f"{where}: secrets", directory)) for it in given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _secret(given: Any, where: str, directory: Path) -> str:
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


def _refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, list(known), 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown name {name!r}{hint}")


def _table(given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be a table")
    return given


def _tables(
    given: Mapping[str, Any], kind: str, prefix: str = ""
) -> list[tuple[str, Mapping[str, Any]]]:
    found = []
    for name, table in _table(given.get(kind, {}), f"[{prefix}{kind}]").items():
        where = f"[{prefix}{kind}.{name}]"
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: use letters, digits, '.', '_' and '-' in names")
        found.append((name, _table(table, where)))
    return found


def _text(table: Mapping[str, Any], name: str, where: str, default: str | None = None) -> str:
    found = table.get(name, default)
    if not isinstance(found, str) or not found:
        raise ConfigError(f"{where}: {name} must be a string that is not empty")
    return found


def _topic(table: Mapping[str, Any], where: str) -> str:
    found = _text(table, "topic", where)
    if not _TOPIC.fullmatch(found):
        raise ConfigError(f"{where}: topic is {found!r}; use letters, digits, '.', '_' and '-'")
    return found


def _texts(table: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    found = table.get(name, [])
    if not isinstance(found, list) or not all(isinstance(it, str) and it for it in found):
        raise ConfigError(f"{where}: {name} must be a list of strings")
    return tuple(found)


def _one_of(
    table: Mapping[str, Any], name: str, where: str, known: tuple[str, ...], default: str
) -> str:
    found = table.get(name, default)
    if found not in known:
        raise ConfigError(f"{where}: {name} is {found!r}; it must be one of {', '.join(known)}")
    return str(found)


def _number(
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
