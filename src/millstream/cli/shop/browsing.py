"""The console of the demo's shop: served beside it, opened in a browser where there is a display.

At the end, the account goes to a topic, so that it can be read in the console, too. In a terminal,
the shop's broker and the console stay until a key is pressed.
"""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from collections.abc import Mapping
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from millstream.cli.shop.audit import Verdict
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.console.server import ConsoleServer

ACCOUNT = "account"
FLUSH_S = 30.0
PREFERRED = "127.0.0.1:8080"
ANY_PORT = "127.0.0.1:0"
PAGE = "pipelines"


def start_console(bootstrap_servers: str) -> ConsoleServer | None:
    """Serve it in a thread; None without the extra `console`."""
    try:
        from millstream.console.server import ConsoleServer
    except ModuleNotFoundError:
        return None
    from millstream.console.settings import ConsoleSettings

    settings = ConsoleSettings(bootstrap_servers)
    try:
        server = ConsoleServer(settings, PREFERRED)
    except (MillstreamError, OSError):  # something else listens there
        server = ConsoleServer(settings, ANY_PORT)
    server.start()
    return server


def has_display(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether a browser would be seen by somebody."""
    if platform in ("darwin", "win32"):
        return "SSH_CONNECTION" not in environment
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def open_browser(url: str) -> bool:
    """Whether one was opened."""
    return has_display(os.environ) and webbrowser.open(url)


def write_account(bootstrap_servers: str, verdict: Verdict) -> None:
    """What was compared, a record each."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for it in verdict.findings:
        content = it._asdict() | {"holds": it.holds}
        producer.produce(ACCOUNT, json.dumps(content).encode(), it.what)
    producer.flush(FLUSH_S)
