"""The files that `millstream cert dev` writes, and what it refuses to write over."""

from __future__ import annotations

import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.client.security import Security
from millstream.client.settings import read_client_settings
from millstream.config.properties import parse_properties
from tests.cli.conftest import Run
from tests.peers.kafka import start_kafka
from tests.peers.servers import free_port


def made(run: Run, directory: Path, *options: str) -> set[str]:
    outcome = run("cert", "dev", str(directory), *options)
    assert outcome.exit_code == 0, outcome.err
    assert all(Path(line).exists() for line in outcome.out.splitlines())
    return {Path(line).name for line in outcome.out.splitlines()}


def test_dev_makes_what_a_broker_and_its_clients_need(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "certs"
    names = made(run, directory, "--client", "billing", "--host", "broker.test")
    assert names == {it.name for it in directory.iterdir()}
    assert names == {
        *("ca.pem", "ca.key", "broker.pem", "admin.pem", "billing.pem"),
        *("server.properties", "client.properties", "admin.properties", "billing.properties"),
    }
    private = {it.name for it in directory.iterdir() if not stat.S_IMODE(it.stat().st_mode) & 0o77}
    assert private == {"ca.key", "broker.pem", "admin.pem", "billing.pem", "client.properties"}
    context = ssl.create_default_context(cafile=directory / "ca.pem")
    context.load_cert_chain(directory / "broker.pem")
    settings = read_client_settings(directory / "billing.properties")
    assert settings.pop("bootstrap.servers") == "127.0.0.1:9092"
    Security.from_settings(settings).tls_context()


def test_dev_adds_clients_and_overwrites_nothing(run: Run, tmp_path: Path) -> None:
    made(run, tmp_path / "certs")
    before = {it: it.read_bytes() for it in (tmp_path / "certs").iterdir()}
    again = run("cert", "dev", str(tmp_path / "certs"))
    assert again.exit_code == 1
    assert "has an authority already; add a client with --client NAME" in again.err
    names = made(run, tmp_path / "certs", "--client", "billing")
    assert names == {"billing.pem", "billing.properties"}
    twice = run("cert", "dev", str(tmp_path / "certs"), "--client", "ann", "--client", "billing")
    assert "has billing.pem, billing.properties already; nothing was written" in twice.err
    assert not (tmp_path / "certs" / "ann.pem").exists()
    assert {it: it.read_bytes() for it in before} == before


@pytest.mark.parametrize("name", ["ca", "broker", "../x", "a b", "", ".hidden"])
def test_dev_refuses_names_that_are_no_file_names(run: Run, tmp_path: Path, name: str) -> None:
    outcome = run("cert", "dev", str(tmp_path / "certs"), "--client", name)
    assert outcome.exit_code == 2
    assert f"--client {name!r}: write a name of letters" in outcome.err
    assert not (tmp_path / "certs").exists()


def test_dev_says_when_the_authority_is_damaged(run: Run, tmp_path: Path) -> None:
    made(run, tmp_path)
    (tmp_path / "ca.key").write_text("no key")
    outcome = run("cert", "dev", str(tmp_path), "--client", "ann")
    assert outcome.exit_code == 1
    assert "ca.pem and ca.key cannot be used" in outcome.err


def test_dev_names_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        f"from millstream.cli.main import main; main(['cert', 'dev', {str(tmp_path / 'c')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'millstream[security]'" in done.stderr


@pytest.mark.slow
@pytest.mark.java
def test_dev_makes_settings_for_apache_kafka_too(run: Run, tmp_path: Path) -> None:
    made(run, tmp_path / "certs")
    tls, sasl, controller = free_port(), free_port(), free_port()
    for file in (tmp_path / "certs").glob("*.properties"):
        text = file.read_text().replace("127.0.0.1:9092", f"127.0.0.1:{tls}")
        file.write_text(text.replace("127.0.0.1:9093", f"127.0.0.1:{sasl}"))
    settings = parse_properties((tmp_path / "certs" / "server.properties").read_text())
    settings |= {  # of its controller, which is not secured here
        "listeners": f"{settings['listeners']},CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": "SSL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "super.users": f"{settings['super.users']};User:ANONYMOUS",
    }
    kafka = start_kafka(tmp_path / "kafka", settings, port=tls)
    try:
        admin = ("--client-config", str(tmp_path / "certs" / "admin.properties"))
        for command in (("topic", "create", "t"), ("user", "create", "shop", "--generate")):
            outcome = run(*admin, *command)
            assert outcome.exit_code == 0, outcome.err
    finally:
        kafka.stop()
