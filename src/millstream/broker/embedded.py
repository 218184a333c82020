"""A broker inside a Python program: for tests, notebooks and small services.

    with Broker.start() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

It is the same broker that `millstream serve` runs, with the same files. By default it runs in a
thread of this process, with an event loop of its own; with `in_process=False` in a child process,
which can be killed (`kill`) as a power cut would, and started again on the same data (`restart`).

    with Broker.start(security="SASL_SSL", users={"alice": "secret"}) as broker:
        producer = confluent_kafka.Producer(broker.client_settings("alice"))
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from millstream.errors import ConfigError, MillstreamError

if TYPE_CHECKING:
    from millstream.broker.security.trial import TrialSecurity
    from millstream.clock import Clock

STOP_SECONDS_MAX = 30.0


class Broker:
    """A running broker. Make one with `Broker.start`."""

    def __init__(self, data_dir: Path, config: dict[str, object], *, in_process: bool) -> None:
        self.data_dir = data_dir
        self._config = config
        self._in_process = in_process
        self._clock: Clock | None = None
        self._owns_data_dir = False
        self._security: TrialSecurity | None = None
        self._runner: _Runner | None = None

    @classmethod
    def start(
        cls,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
        *,
        port: int = 0,
        in_process: bool = True,
        security: str | None = None,
        users: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> Broker:
        """Start a broker and return when it serves.

        Without `data_dir`, the data is temporary and deleted on stop. `config` has Kafka's settings
        by name: `{"num.partitions": 4}`; `group.initial.rebalance.delay.ms` defaults to 0. Port 0:
        any free port; `restart` keeps it. `security` is one of Kafka's protocols, such as SASL_SSL,
        and `users` have passwords; certificates are made for it. See `client_settings`.
        With a `clock`, tests control retention, locks, delays and timestamps of this process.
        """
        if clock is not None and not in_process:
            raise ConfigError("a clock is for a broker in this process")
        settings: dict[str, object] = dict(config or {})
        if not settings.keys().isdisjoint(("log.dir", "log.dirs")):
            raise ConfigError("pass `data_dir` instead of log.dirs to an embedded broker")
        secured = _secured(security, users, settings)
        directory = Path(data_dir) if data_dir is not None else _temporary_directory()
        settings.setdefault("listeners", f"{security or 'PLAINTEXT'}://127.0.0.1:{port}")
        # Kafka's 3 s avoid rebalances in large deployments; here they would only delay tests.
        settings.setdefault("group.initial.rebalance.delay.ms", 0)
        settings["log.dirs"] = str(directory)
        broker = cls(directory, settings, in_process=in_process)
        broker._owns_data_dir = data_dir is None
        broker._security = secured
        broker._clock = clock
        try:
            broker._launch()
        except BaseException:
            broker._remove_temporary_data()
            raise
        return broker

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients' `bootstrap.servers`: that of the first listener."""
        return next(iter(self.addresses.values()))

    @property
    def addresses(self) -> Mapping[str, str]:
        """The address of each listener, by its name."""
        if self._runner is None:
            raise MillstreamError("the broker is stopped; call restart()")
        return self._runner.addresses

    def client_settings(self, user: str | None = None) -> dict[str, str]:
        """The settings of a client, with librdkafka's names, as this user; by default as the first
        one, or as nobody if there are none."""
        settings = {"bootstrap.servers": self.bootstrap_servers}
        if self._security is not None:
            settings |= self._security.client_settings(user)
        elif user is not None:
            raise ConfigError("the broker has no users: start it with `security` and `users`")
        return settings

    @property
    def metrics_url(self) -> str | None:
        """Where metrics are served, if `millstream.metrics.listener` is set."""
        address = None if self._runner is None else self._runner.metrics_address
        return None if address is None else f"http://{address}/metrics"

    @property
    def is_running(self) -> bool:
        return self._runner is not None

    def stop(self) -> None:
        """Stop cleanly: answer requests in flight, flush, close. Deletes temporary data."""
        self._end(lambda runner: runner.stop())
        self._remove_temporary_data()

    def kill(self) -> None:
        """Kill the child process with SIGKILL, like a crash; `restart` finds the data."""
        if self._in_process:
            raise MillstreamError(
                "cannot kill a broker in this process; start it with in_process=False"
            )
        self._end(lambda runner: runner.kill())

    def restart(self) -> None:
        """Stop cleanly if it runs, and start again on the same data and port."""
        self._end(lambda runner: runner.stop())
        self._launch()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        where = self.bootstrap_servers if self._runner else "stopped"
        return f"<Broker {where} {self.data_dir}>"

    def _launch(self) -> None:
        if self._in_process:
            self._runner = _Thread(self._config, self._clock)
        else:
            self._runner = _Child(self._config)
        # The next start takes the same ports, so that clients find the broker again.
        self._config["listeners"] = ",".join(
            f"{listener}://{address}" for listener, address in self._runner.addresses.items()
        )
        if self._runner.metrics_address is not None:
            self._config["millstream.metrics.listener"] = self._runner.metrics_address

    def _end(self, how: Any) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            how(runner)

    def _remove_temporary_data(self) -> None:
        if self._security is not None:
            self._security.close()
        if self._owns_data_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)


def _secured(
    security: str | None, users: Mapping[str, str] | None, settings: dict[str, object]
) -> TrialSecurity | None:
    """Adds to the settings. Imported only if it is asked for."""
    if security is None:
        if users:
            raise ConfigError('users need security, such as security="SASL_SSL"')
        return None
    from millstream.broker.security.trial import TrialSecurity

    if "listeners" in settings:
        raise ConfigError("pass `security`, or listeners with their settings, not both")
    secured = TrialSecurity(security, users or {})
    for name, value in secured.settings.items():
        settings.setdefault(name, value)
    return secured


class _Runner(Protocol):
    addresses: Mapping[str, str]
    metrics_address: str | None

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class _Thread:
    """A broker in a daemon thread."""

    def __init__(self, config: Mapping[str, object], clock: Clock | None) -> None:
        self.addresses: Mapping[str, str] = {}
        self.metrics_address: str | None = None
        self._config = config
        self._clock = clock
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="millstream-broker", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        # An event loop that still runs while the interpreter is torn down may crash the process.
        atexit.register(self.stop)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            raise MillstreamError("the broker did not stop in time and is still running")
        if self._error is not None:
            raise self._error

    def kill(self) -> None:
        raise NotImplementedError("a thread cannot be killed")

    def _run(self) -> None:
        try:
            from millstream.broker.process import new_event_loop

            self._loop = new_event_loop()
            try:
                self._loop.run_until_complete(self._serve())
            finally:
                self._loop.close()
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        from millstream.broker.server import BrokerServer
        from millstream.config.broker import BrokerConfig

        self._stopping = asyncio.Event()
        server = BrokerServer(BrokerConfig.from_values(self._config), clock=self._clock)
        await server.start()
        self.addresses = server.listener_addresses
        self.metrics_address = server.metrics_address
        self._started.set()
        await self._stopping.wait()
        await server.stop()


class _Child:
    """A broker in a child process. It exits with us: its standard input is our pipe."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "millstream.broker.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must not reach it: we stop it ourselves
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(dict(config), default=str) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: dict[str, Any] = {"error": "the broker's process ended at its start"}
        if line:
            answer = json.loads(line)
        if "error" in answer:
            self._process.wait()
            self._close_pipes()
            raise MillstreamError(answer["error"])
        self.addresses: Mapping[str, str] = answer["addresses"]
        self.metrics_address: str | None = answer.get("metrics_address")

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise MillstreamError("the broker did not stop in time and was killed") from None
        finally:
            self._close_pipes()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _temporary_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="millstream-"))
