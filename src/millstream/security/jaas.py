"""`sasl.jaas.config`: a login module and its options, as Java writes them.

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="broker" password="secret" user_alice="wonderland" user_broker="secret";

Only the options matter here; the module says for which mechanism they are. Errors show no values,
since these are passwords.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from millstream.errors import ConfigError

PLAIN_MODULE = "PlainLoginModule"
SCRAM_MODULE = "ScramLoginModule"
OAUTHBEARER_MODULE = "OAuthBearerLoginModule"

_FLAGS = ("required", "requisite", "sufficient", "optional")
_USER_PREFIX = "user_"
_BLANK = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[^\s;=\"']+")
_VALUE = re.compile(
    r"""\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""", re.DOTALL
)


@dataclass(frozen=True)
class JaasConfig:
    """One login module. Its repr shows no options."""

    module: str  # without its package
    options: dict[str, str] = field(repr=False)

    @property
    def login(self) -> tuple[str, str] | None:
        """The user and password to log in with, if there are both."""
        username, password = self.options.get("username"), self.options.get("password")
        return None if username is None or password is None else (username, password)

    @property
    def users(self) -> dict[str, str]:
        """The passwords by user that a server of PLAIN accepts."""
        return {
            name.removeprefix(_USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(_USER_PREFIX)
        }


def parse_jaas(text: str) -> JaasConfig:
    """Raises `ConfigError`."""
    reader = _Reader(text)
    module = reader.word(
        "a login module, such as org.apache.kafka.common.security.scram." + SCRAM_MODULE
    )
    flag = reader.word("a flag after the login module, such as required")
    if flag.lower() not in _FLAGS:
        raise reader.refusal(f"one of {', '.join(_FLAGS)} after the login module")
    options: dict[str, str] = {}
    while not reader.at_end():
        name = reader.word("the name of an option")
        options[name] = reader.value(name)
    return JaasConfig(module.rpartition(".")[2], options)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._skip_blank()

    def word(self, expected: str) -> str:
        found = _WORD.match(self._text, self._place)
        if found is None:
            raise self.refusal(expected)
        self._advance(found)
        return found[0]

    def value(self, name: str) -> str:
        found = _VALUE.match(self._text, self._place)
        if found is None:
            raise self.refusal(f'{name}="value"')
        self._advance(found)
        quoted = found[1] if found[1] is not None else found[2]
        return found[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)

    def at_end(self) -> bool:
        """At the semicolon that ends the module, which may be missing; nothing may follow it."""
        rest = self._text[self._place :]
        if rest.startswith(";"):
            self._place += 1
            self._skip_blank()
            if self._place < len(self._text):
                raise self.refusal("one login module, and nothing after its semicolon")
            return True
        return not rest

    def refusal(self, expected: str) -> ConfigError:
        return ConfigError(
            f"sasl.jaas.config is not as Java writes it: expected {expected}, at character "
            f"{self._place + 1} of {len(self._text)}"
        )

    def _advance(self, found: re.Match[str]) -> None:
        self._place = found.end()
        self._skip_blank()

    def _skip_blank(self) -> None:
        blank = _BLANK.match(self._text, self._place)
        assert blank is not None
        self._place = blank.end()
