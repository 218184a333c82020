"""Java's properties files, in which brokers and clients have their settings."""

from __future__ import annotations

import re

from millstream.errors import ConfigError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Java's properties: `name=value`, `#` comments, a backslash continues or escapes."""
    values: dict[str, str] = {}
    continued = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t]*", r"\1", text)
    for number, line in enumerate(continued.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        match = re.match(r"((?:\\.|[^\\=:\s])+)\s*[=:\s]?\s*(.*)", line)
        if match is None:
            # Without its text, which may be a password.
            raise ConfigError(f"line {number} is not a setting; write name=value")
        values[_unescape(match[1])] = _unescape(match[2])
    return values


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _ESCAPES.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", replace, text)
