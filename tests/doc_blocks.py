"""Documentation that is run: fenced blocks of a page, executed in order in one directory.

    ```python            a script of its own
    ```python test_x.py  saved under that name and run by pytest
    ```json x.json       saved under that name, as is ```toml x.toml
    ```console           `$ command` lines, run by bash, each followed by its output
    ```sh                commands that are not run here, only checked (pip install, make ...)

Pages say 127.0.0.1:9092, as a reader has it; the tests put another address in its place, also in
settings files that commands write. `$ export NAME=VALUE` is for the rest of the page. In expected
output `...` stands for anything, on a line of its own for any lines, and runs of blanks
are equal.
`$ millstream serve &` starts a server that lives until the end of the page.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE_ADDRESS = "127.0.0.1:9092"
SECOND_ADDRESS = "127.0.0.1:9093"  # of a broker with two listeners
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND_SECONDS_MAX = 400  # Spark takes its time to start


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the rest of that line, its text, its line in the page."""

    language: str
    title: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2].strip(), match[3], text[: match.start()].count("\n") + 1)
        for match in FENCE.finditer(text)
    ]


def commands_of(block: Block) -> list[tuple[str, str]]:
    """(command, expected output) of a console block; a backslash continues a command."""
    joined = block.text.replace("\\\n", "")
    parts = re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0].strip(), part.partition("\n")[2]) for part in parts]


def _this_machine() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}  # the guide to Nexmark uses the examples


@dataclass
class PageRun:
    """One page being run: a directory, an address, and the servers that it started."""

    directory: Path
    address: str
    second_address: str = SECOND_ADDRESS
    variables: dict[str, str] = field(default_factory=dict)
    servers: list[subprocess.Popen[str]] = field(default_factory=list)
    python: Path = Path(sys.executable)
    machine: Mapping[str, str] = field(default_factory=_this_machine)

    @property
    def environment(self) -> dict[str, str]:
        found = {
            **self.machine,
            "PATH": f"{self.python.parent}:{self.machine['PATH']}",
            "MILLSTREAM_BOOTSTRAP_SERVERS": self.address,
            "MILLSTREAM_LISTENERS": f"PLAINTEXT://{self.address}",
            "MILLSTREAM_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }
        if any(self.directory.rglob("server.properties")):  # which has them
            del found["MILLSTREAM_BOOTSTRAP_SERVERS"], found["MILLSTREAM_LISTENERS"]
        return found | self.variables

    def placed(self, text: str) -> str:
        """With the addresses of this run."""
        found = text.replace(PAGE_ADDRESS, self.address)
        return found.replace(SECOND_ADDRESS, self.second_address)

    def run(self, block: Block) -> None:
        if block.language == "python":
            self.run_python(block)
        elif block.language == "console":
            for command, expected in commands_of(block):
                self.run_command(command, expected)
        elif block.language in ("json", "toml") and block.title:
            text = self.placed(block.text)
            (self.directory / block.title).write_text(text, encoding="utf-8")

    def run_python(self, block: Block) -> None:
        name = block.title or f"block_{block.line}.py"
        script = self.directory / name
        script.write_text(self.placed(block.text), encoding="utf-8")
        runner = (
            ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if name.startswith("test_") else []
        )
        self.check([str(self.python), *runner, str(script)], f"python block at line {block.line}")

    def run_command(self, command: str, expected: str) -> None:
        command, expected = self.placed(command), self.placed(expected)
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.variables[name] = value
            return
        if command.endswith("&"):
            output = self.start_server(command.removesuffix("&"))
        else:
            output = self.check(["bash", "-c", command], f"`{command}`")
            for file in self.directory.rglob("*.properties"):
                file.write_text(self.placed(file.read_text()))
        assert matches(expected, output), f"`{command}` should print\n{expected}but does\n{output}"

    def check(self, command: list[str], what: str) -> str:
        """Run it to its end; returns both outputs as a terminal would show them."""
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{what} failed:\n{done.stdout}"
        return done.stdout

    def start_server(self, command: str) -> str:
        """Start a server and wait for its first line, which says that it is ready."""
        server = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.servers.append(server)
        assert server.stdout is not None
        return server.stdout.readline()

    def stop(self) -> None:
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
            server.wait(COMMAND_SECONDS_MAX)
            assert server.stdout is not None
            server.stdout.close()


def matches(expected: str, output: str) -> bool:
    """Whether the output is the expected one, `...` standing for anything."""
    pattern = ""
    for line in expected.splitlines():
        words = " ".join(line.split())
        if words == "...":
            pattern += r"(?:[^\n]*\n)*?"
        elif words:
            pattern += re.escape(words).replace(r"\.\.\.", ".*") + "\n"
    lines = (" ".join(line.split()) for line in output.splitlines())
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines if line)) is not None
