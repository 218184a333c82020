"""Where pipelines run: addresses and directories, from a file, the environment and arguments.

Later sources win over earlier ones:

    1. `millstream.toml`  beside the file that defines the pipelines
    2. the environment    MILLSTREAM_BOOTSTRAP_SERVERS, MILLSTREAM_STORE, ... (`VARIABLES`)
    3. arguments          options of `millstream run`, or of `Pipeline.start`

    broker = "127.0.0.1:9092"               # or "embedded", the default of `millstream run`
    store = "postgresql://shop@db/shop"     # or "sqlite:///shop.db"; default: SQLite in `home`
    checkpoint = "s3a://bucket/checkpoints" # default: in `home`
    home = ".millstream"                    # our own files; relative to this file
    metrics = "127.0.0.1:9405"              # serve metrics there; metrics_token protects them
    spark_shortcuts = false                 # plain Spark (see session.py); default: true
    publish_status = false                  # tell the console nothing (see publishing.py)

    client_config = "client.properties"     # a Kafka client's settings; relative to this file

    [kafka]                                 # its security settings, instead or besides
    "security.protocol" = "SASL_SSL"

    [spark]                                 # settings of the session that `millstream run` creates
    "spark.driver.memory" = "4g"

An unknown name is an error that suggests the nearest.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from millstream.client.security import KNOWN as SECURITY_SETTINGS
from millstream.client.security import read_connection, standard_names
from millstream.errors import ConfigError

FILE_NAME = "millstream.toml"
HOME_DEFAULT = ".millstream"
EMBEDDED = "embedded"

VARIABLES = {
    "broker": "MILLSTREAM_BOOTSTRAP_SERVERS",
    "store": "MILLSTREAM_STORE",
    "checkpoint": "MILLSTREAM_CHECKPOINT",
    "home": "MILLSTREAM_HOME",
    "master": "MILLSTREAM_MASTER",
    "trigger": "MILLSTREAM_TRIGGER",
    "metrics": "MILLSTREAM_METRICS",
    "metrics_token": "MILLSTREAM_METRICS_TOKEN",
}
CLIENT_CONFIG_VARIABLE = "MILLSTREAM_CLIENT_CONFIG"
SHORTCUTS_VARIABLE = "MILLSTREAM_SPARK_SHORTCUTS"
PUBLISH_VARIABLE = "MILLSTREAM_PUBLISH_STATUS"
FLAGS = ("create_topics", "spark_shortcuts", "publish_status")
NAMES = (*VARIABLES, *FLAGS, "client_config", "kafka", "spark")


@dataclass(frozen=True)
class Settings:
    """What is None was not given anywhere."""

    home: Path
    broker: str | None = None
    store: str | None = None
    checkpoint: str | None = None
    trigger: str | None = None
    metrics: str | None = None
    metrics_token: str | None = field(default=None, repr=False)
    master: str = "local[*]"
    create_topics: bool | None = None
    spark_shortcuts: bool = True
    publish_status: bool = True
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    spark: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_embedded(self) -> bool:
        return self.broker is None or self.broker == EMBEDDED

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.home / 'store.db'}"

    @property
    def broker_data(self) -> Path:
        return self.home / "broker"

    def required_broker(self) -> str:
        if self.broker is None or self.broker == EMBEDDED:
            raise ConfigError(
                f'no broker is named: pass broker="host:port", set {VARIABLES["broker"]}, or write '
                f"it into {FILE_NAME}; millstream.Broker.start() gives you one right here"
            )
        return self.broker

    def required_checkpoint(self) -> str:
        if self.checkpoint is None:
            raise ConfigError(
                'no checkpoint directory is named: pass checkpoint="directory", set '
                f"{VARIABLES['checkpoint']}, or write it into {FILE_NAME}. A stream goes on from "
                "there after a restart"
            )
        return self.checkpoint

    def kafka_options(self) -> dict[str, str]:
        """As options of `format("millstream")`."""
        return {
            "kafka.bootstrap.servers": self.required_broker(),
            **{f"kafka.{name}": value for name, value in self.kafka.items()},
        }


def load_settings(
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """All sources in their order; raises `ConfigError` that says what is wrong, and where.

    `directory` is where the pipelines' file is; None: where we are. Overrides that are None count
    as not given.
    """
    directory = directory or Path.cwd()
    environment = os.environ if environment is None else environment
    values = read_settings_file(directory / FILE_NAME)
    _take_client_config(values, directory)
    values |= {
        name: environment[variable]
        for name, variable in VARIABLES.items()
        if environment.get(variable)
    }
    if environment.get(SHORTCUTS_VARIABLE):
        values["spark_shortcuts"] = shortcuts_in(environment)
    if environment.get(PUBLISH_VARIABLE):
        values["publish_status"] = flag_in(environment, PUBLISH_VARIABLE)
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    _refuse_unknown(given, NAMES, "setting")
    if "client_config" not in given and environment.get(CLIENT_CONFIG_VARIABLE):
        given["client_config"] = environment[CLIENT_CONFIG_VARIABLE]
    if "client_config" in given:
        values.pop("kafka", None)
        values.pop("client_broker", None)
        _take_client_config(given, Path.cwd())
    values |= given
    values.setdefault("broker", values.pop("client_broker", None))
    values.pop("client_broker", None)
    home = Path(str(values.pop("home", HOME_DEFAULT))).expanduser()
    return Settings(home=(directory / home).resolve(), **values)


def _take_client_config(values: dict[str, Any], directory: Path) -> None:
    """Replace the name of a client's settings file by its security settings, and by its brokers,
    which count unless others are named. Settings in `kafka` override those of the file."""
    kafka = standard_names(values.get("kafka", {}))
    file = values.pop("client_config", None)
    if file is not None:
        found, values["client_broker"] = read_connection(directory / Path(file).expanduser())
        kafka = found | kafka
    if kafka:
        values["kafka"] = kafka


def shortcuts_in(environment: Mapping[str, str]) -> bool:
    """Whether the environment allows what relies on Spark's internals; the default is that it
    does. Raises `ConfigError`."""
    return flag_in(environment, SHORTCUTS_VARIABLE)


def flag_in(environment: Mapping[str, str], variable: str) -> bool:
    """True unless the variable says false. Raises `ConfigError`."""
    text = environment.get(variable) or "true"
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{variable}={text}: it must be true or false")
    return text.lower() == "true"


def read_settings_file(path: Path) -> dict[str, Any]:
    """The settings in the file; none if there is no file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    _refuse_unknown(content, NAMES, f"{path.name}: setting")
    for section in ("kafka", "spark"):
        if section in content:
            content[section] = dict(_texts(path, section, content[section]))
    if "spark" in content:
        content["spark"] = {
            name if name.startswith("spark.") else f"spark.{name}": value
            for name, value in content["spark"].items()
        }
    _refuse_unknown(content.get("kafka", {}), SECURITY_SETTINGS, f"{path.name}: [kafka]")
    for name in (*VARIABLES, "client_config"):
        if name in content and not isinstance(content[name], str):
            raise ConfigError(f'{path.name}: {name} must be a text: {name} = "..."')
    for name in FLAGS:
        if not isinstance(content.get(name, False), bool):
            raise ConfigError(f"{path.name}: {name} must be true or false")
    return content


def _texts(path: Path, prefix: str, section: Any) -> list[tuple[str, str]]:
    """A section as names and texts; names may nest: `[kafka.ssl]`, or `ssl.x` in `[kafka]`."""
    if not isinstance(section, dict):
        raise ConfigError(f"{path.name}: {prefix} must be a section: [{prefix}]")
    return list(_flatten("", section))


def _flatten(prefix: str, section: Mapping[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in section.items():
        if isinstance(value, dict):
            found += _flatten(f"{prefix}{name}.", value)
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found.append((prefix + name, text))
    return found


def _refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise ConfigError(f"{what} {name} is not known; {hint}")
