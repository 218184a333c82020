"""Runs what the file of a bridge declares, until it is stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.bridges.config import BridgeConfig, HttpConfig
from millstream.bridges.counts import Counts
from millstream.bridges.loops import Loop, Part
from millstream.bridges.sending import Sender
from millstream.bridges.statsd.receiver import Receiver
from millstream.metrics.threaded import MetricsThread

if TYPE_CHECKING:
    from millstream.bridges.http.server import HttpServer
    from millstream.bridges.webhooks.endpoint import Endpoint
    from millstream.bridges.zeromq.inbound import Inbound as ZeromqInbound
    from millstream.bridges.zeromq.outbound import Outbound as ZeromqOutbound


class Bridge:
    """A running bridge: `with Bridge(config) as bridge:`. Listens when it is made."""

    def __init__(self, config: BridgeConfig, command: str = "") -> None:
        """`command` is what started it, for those who see its status."""
        self.config = config
        self.counts = Counts()
        self.http: HttpServer | None = None
        self.endpoints: list[Endpoint] = []
        self.senders: list[Sender] = []
        self.receivers: list[Receiver] = []
        self.loops: list[Loop] = []
        self.zeromq_in: list[ZeromqInbound] = []
        self.zeromq_out: list[ZeromqOutbound] = []
        self.metrics: MetricsThread | None = None
        with contextlib.ExitStack() as undo:
            self._open(undo)
            if config.publish_status:
                from millstream.bridges.publishing import Publisher

                publisher = Publisher(self, command)
                undo.callback(publisher.stop)
                publisher.start()
            self._closing = undo.pop_all()

    def _open(self, undo: contextlib.ExitStack) -> None:
        """Start each part; what was started is stopped in the opposite order: first what takes
        records in, then the producer."""
        settings = self.config.client_settings
        if self.config.metrics is not None:
            self.metrics = MetricsThread(self.config.metrics, self.counts.families, self.problems)
            undo.callback(self.metrics.stop)
        sender = self._open_sender(undo, settings)
        for statsd in self.config.statsd:
            receiver = Receiver(statsd, sender, self.counts)
            self._start(undo, receiver)
            self.receivers.append(receiver)
        if self.config.mold_in or self.config.mold_out:
            self._open_mold(undo, sender)
        if self.config.zeromq_in or self.config.zeromq_out:
            self._open_zeromq(undo, sender)
        if self.config.http is not None:
            self._open_http(undo, sender, self.config.http)
        for webhook in self.config.webhooks:
            from millstream.bridges.webhooks.endpoint import Endpoint

            endpoint = Endpoint(webhook, settings, self.counts)
            self._start(undo, endpoint)
            self.endpoints.append(endpoint)

    def _open_sender(self, undo: contextlib.ExitStack, settings: Mapping[str, Any]) -> Sender:
        sender = Sender(settings, self.counts)
        undo.callback(sender.close)
        self.senders.append(sender)
        return sender

    def _start(self, undo: contextlib.ExitStack, part: Part) -> None:
        undo.callback(part.stop)
        part.start()
        self.loops += part.loops

    def _open_http(self, undo: contextlib.ExitStack, sender: Sender, config: HttpConfig) -> None:
        from millstream.bridges.http.app import Gateway
        from millstream.bridges.http.conditions import PRODUCER, prepare_topic
        from millstream.bridges.http.hooks import HookIds
        from millstream.bridges.http.server import HttpServer
        from millstream.bridges.http.streaming import TopicStream

        settings, exact, ids = self.config.client_settings, None, {}
        for name, hook in config.hooks.items():
            if not hook.exact:
                ids[name] = HookIds(settings, hook.topic, name)
                undo.callback(ids[name].close)
                continue
            prepare_topic(settings, hook.topic)
            if exact is None:
                exact = self._open_sender(undo, settings | PRODUCER)
        stream = partial(TopicStream, settings)
        self.http = HttpServer(Gateway(config, sender, stream, self.counts, ids, exact))
        undo.callback(self.http.stop)
        self.http.start()

    def _open_mold(self, undo: contextlib.ExitStack, sender: Sender) -> None:
        from millstream.bridges.mold.inbound import Inbound
        from millstream.bridges.mold.outbound import Outbound

        settings = self.config.client_settings
        streams: list[Inbound | Outbound] = [
            *(Inbound(it, settings, sender, self.counts) for it in self.config.mold_in),
            *(Outbound(it, settings, self.counts) for it in self.config.mold_out),
        ]
        for stream in streams:
            self._start(undo, stream)

    def _open_zeromq(self, undo: contextlib.ExitStack, sender: Sender) -> None:
        from millstream.bridges.zeromq.inbound import Inbound
        from millstream.bridges.zeromq.outbound import Outbound

        settings = self.config.client_settings
        for into in self.config.zeromq_in:
            inbound = Inbound(into, settings, sender, self.counts)
            self._start(undo, inbound)
            self.zeromq_in.append(inbound)
        for out in self.config.zeromq_out:
            outbound = Outbound(out, settings, self.counts)
            self._start(undo, outbound)
            self.zeromq_out.append(outbound)

    def problems(self) -> list[str]:
        """What keeps it from being ready."""
        gone = [f"webhook {it.config.name} is gone (410)" for it in self.endpoints if it.is_gone]
        problems = [it.problem for it in self.senders] + [it.problem for it in self.loops]
        problems += [it.problem for it in self.zeromq_in]
        return gone + [it for it in problems if it is not None]

    @property
    def addresses(self) -> list[str]:
        """Where it listens and what it calls, for people."""
        found = [f"http://{self.http.address}"] if self.http is not None else []
        found += [f"statsd udp://{it.address}" for it in self.receivers]
        found += [f"mold udp://{it.listen}" for it in self.config.mold_in]
        found += [f"mold to udp://{it.to}" for it in self.config.mold_out]
        found += [f"zeromq {it.config.type} {it.address}" for it in self.zeromq_in]
        found += [f"zeromq {it.config.type} {it.address}" for it in self.zeromq_out]
        found += [f"webhook {it.config.name}" for it in self.endpoints]
        return found + ([self.metrics.url] if self.metrics is not None else [])

    def close(self) -> None:
        self._closing.close()

    def __enter__(self) -> Bridge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
