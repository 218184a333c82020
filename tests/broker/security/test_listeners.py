"""TLS and SASL of listeners as the settings say."""

from __future__ import annotations

import ssl
import threading
from pathlib import Path

import pytest

from millstream.broker.metadata.store import MetadataLog
from millstream.broker.security import tls
from millstream.broker.security.listeners import ListenerSecurity
from millstream.clock import SystemClock
from millstream.config.broker import BrokerConfig
from millstream.config.security import SecuritySettings
from millstream.errors import ConfigError
from tests.broker.pki import Pki, make_pki
from tests.peers.patience import PATIENCE_SECONDS

LISTENERS = "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2,SASL_SSL://127.0.0.1:3"
KEYSTORE = "listener.name.ssl.ssl.keystore.location"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


def secure(config: BrokerConfig) -> ListenerSecurity:
    metadata: MetadataLog = None  # type: ignore[assignment]  # nobody authenticates here
    return ListenerSecurity(config, metadata, SystemClock(), cluster_id="c")


def test_each_listener_has_what_its_protocol_needs(pki: Pki) -> None:
    security = secure(BrokerConfig.from_values({"listeners": LISTENERS, **pki.settings}))
    assert set(security.tls) == {"SSL", "SASL_SSL"}
    assert security.authenticator is not None
    only_tls = BrokerConfig.from_values({"listeners": "SSL://127.0.0.1:1", **pki.settings})
    assert secure(only_tls).authenticator is None


def test_changed_settings_are_used_where_they_changed(pki: Pki, tmp_path: Path) -> None:
    config = BrokerConfig.from_values({"listeners": LISTENERS, **pki.settings})
    security = secure(config)
    contexts = {name: tls.in_use.context for name, tls in security.tls.items()}
    other = make_pki(tmp_path, name="other")
    changed = config.with_dynamic({}, {KEYSTORE: str(other.broker_store)})
    security.check(changed)
    assert security.tls["SSL"].in_use.context is contexts["SSL"], "checking changes nothing"
    security.configure(changed)
    assert security.tls["SSL"].in_use.context is not contexts["SSL"]
    assert security.tls["SASL_SSL"].in_use.context is contexts["SASL_SSL"]


def test_settings_that_cannot_be_used_are_refused(pki: Pki) -> None:
    config = BrokerConfig.from_values({"listeners": LISTENERS, **pki.settings})
    security = secure(config)
    with pytest.raises(ConfigError, match=r"listener SSL: .*No such file"):
        security.check(config.with_dynamic({}, {KEYSTORE: "/no/such.pem"}))


def test_session_of_a_mechanism_may_differ(pki: Pki) -> None:
    config = BrokerConfig.from_values(
        {
            "listeners": LISTENERS,
            "connections.max.reauth.ms": 1,
            "listener.name.sasl_ssl.scram-sha-512.connections.max.reauth.ms": 2,
            **pki.settings,
        }
    )
    security = secure(config)
    assert security._session_ms("SASL_SSL", "SCRAM-SHA-256") == 1
    assert security._session_ms("SASL_SSL", "SCRAM-SHA-512") == 2


def test_files_read_with_old_settings_do_not_replace_new_ones(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig.from_values({"listeners": "SSL://127.0.0.1:1", **pki.settings})
    security = secure(config)
    other = make_pki(tmp_path, name="other")
    changed = config.with_dynamic({}, {KEYSTORE: str(other.broker_store)})
    make, reading, may_go_on = tls.server_context, threading.Event(), threading.Event()
    made: list[tuple[str | None, ssl.SSLContext]] = []

    def slowly(settings: SecuritySettings) -> ssl.SSLContext:
        context = make(settings)
        made.append((settings.ssl_keystore_location, context))
        if not reading.is_set():
            reading.set()
            assert may_go_on.wait(PATIENCE_SECONDS)
        return context

    monkeypatch.setattr(tls, "server_context", slowly)
    refreshing = threading.Thread(target=security.refresh, kwargs={"is_forced": True})
    refreshing.start()
    assert reading.wait(PATIENCE_SECONDS)
    configuring = threading.Thread(target=security.configure, args=(changed,))
    configuring.start()
    configuring.join(0.3)  # it waits for the other, or has ended by now
    may_go_on.set()
    refreshing.join()
    configuring.join()
    of_new = [context for location, context in made if location == str(other.broker_store)]
    assert security.tls["SSL"].in_use.context in of_new
