"""The command as a whole: help, completion, errors in one line, nothing imported in vain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.cli.main import COMMANDS, load_command, reflowed
from tests.cli.commands import all_commands
from tests.cli.conftest import Run
from tests.peers.patience import wait_until
from tests.peers.servers import free_port

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


def test_help_lists_every_command_group(run: Run) -> None:
    outcome = run("--help")
    assert outcome.exit_code == 0
    assert all(f"│ {name} " in outcome.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_table_repeats_each_groups_own_words(name: str) -> None:
    assert (load_command(name).help or "").splitlines()[0] == COMMANDS[name].help


@pytest.mark.parametrize("path", all_commands(), ids=" ".join)
def test_help_of_every_command_has_examples(run: Run, path: tuple[str, ...]) -> None:
    outcome = run(*path, "--help")
    assert outcome.exit_code == 0
    assert "Examples" in outcome.out
    assert f"millstream {' '.join(path)}" in outcome.out.split("Examples")[1]


def test_paragraphs_of_a_help_are_filled_and_examples_are_not() -> None:
    text = "Run it.\n\nIt runs\nuntil Ctrl-C.\n\n\b\n  run a\n  run b"
    assert reflowed(text) == "Run it.\n\nIt runs until Ctrl-C.\n\n\b\n  run a\n  run b"


def test_version_is_printed(run: Run) -> None:
    assert run("--version").out.startswith("millstream ")


def test_unknown_command_suggests_the_nearest(run: Run) -> None:
    outcome = run("topik")
    assert outcome.exit_code == 2
    assert "'topic'" in outcome.err


def test_unreachable_broker_is_one_line_with_the_address(run: Run) -> None:
    address = f"127.0.0.1:{free_port()}"
    outcome = run("topic", "list", "--bootstrap-server", address)
    assert outcome.exit_code == 3
    assert outcome.err.count("\n") == 1
    assert address in outcome.err
    assert "millstream serve" in outcome.err


def test_global_bootstrap_server_reaches_the_command(run: Run, bootstrap_servers: str) -> None:
    assert run("--bootstrap-server", bootstrap_servers, "topic", "list").exit_code == 0


def test_client_config_file_reaches_the_client(cli: Run, tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("# comment\nno.such.setting=1\n")
    outcome = cli("--client-config", str(settings), "topic", "list")
    assert outcome.exit_code == 1
    assert "no.such.setting" in outcome.err
    assert outcome.err.count("\n") == 1


def test_global_options_leave_the_environment_as_it_was(run: Run, tmp_path: Path) -> None:
    before = dict(os.environ)
    run("--client-config", str(tmp_path), "--bootstrap-server", "127.0.0.1:1", "topic", "--help")
    assert dict(os.environ) == before


def test_client_config_file_may_name_the_cluster(
    run: Run, bootstrap_servers: str, tmp_path: Path
) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(f"bootstrap.servers={bootstrap_servers}\n")
    assert run("topic", "list", "--client-config", str(settings)).exit_code == 0


def test_missing_file_is_one_line(run: Run, tmp_path: Path) -> None:
    outcome = run("topic", "list", "--client-config", str(tmp_path / "nowhere"))
    assert outcome.exit_code == 1
    file = tmp_path / "nowhere"
    assert outcome.err == (
        f"millstream: cannot read the settings in {file}: No such file or directory\n"
    )


def test_help_imports_neither_clients_nor_broker() -> None:
    program = (
        "import sys; from millstream.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "loaded = {'confluent_kafka', 'kio', 'millstream.broker', 'asyncio'} & sys.modules.keys()\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("millstream to", "topic"),
        ("millstream topic de", "describe"),
        ("millstream cons", "consume"),
    ],
)
def test_shell_completion_offers_commands(words: str, expected: str) -> None:
    completion = {
        "_MILLSTREAM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    answer = subprocess.run(
        [MILLSTREAM], env=os.environ | completion, capture_output=True, text=True, check=False
    )
    assert expected in answer.stdout.split()


def test_shell_completion_is_installed(tmp_path: Path) -> None:
    # It is installed for the shell that the command is started from; that of the tests may be sh.
    done = subprocess.run(
        ["bash", "-c", '"$@"; exit $?', "bash", MILLSTREAM, "--install-completion"],
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "bash completion installed" in done.stdout
    assert "millstream" in (tmp_path / ".bashrc").read_text()


def test_shell_completion_offers_topics(cli: Run, topic: str) -> None:
    completion = {
        "_MILLSTREAM_COMPLETE": "complete_bash",
        "COMP_WORDS": f"millstream topic describe {topic}",
        "COMP_CWORD": "3",
    }

    def is_offered() -> bool:
        answer = subprocess.run(
            [MILLSTREAM], env=os.environ | completion, capture_output=True, text=True, check=False
        )
        return topic in answer.stdout.split()

    wait_until(is_offered)  # it is silent when the cluster does not answer at once


def test_closed_pipe_ends_quietly(ok: Run, cli: Run, topic: str) -> None:
    ok("produce", topic, stdin="line\n" * 20_000)
    command = f"{MILLSTREAM} consume {topic} --from-beginning --no-follow | head -1"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=os.environ, check=False
    )
    assert result.stdout == "line\n"
    assert result.stderr == ""
