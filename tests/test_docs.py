"""The documentation cannot lie: its commands and programs are run, its generated pages compared."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doc_blocks import PageRun, blocks_of, commands_of, matches
from tests.peers.cache import PeerMissing
from tests.peers.servers import free_port, start_millstream
from tests.peers.spark_connector import connector_jars

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LANGUAGES = {"python", "console", "sh", "toml", "properties", "text", "json"}
LINK = re.compile(r"\[[^\]]+\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def page_run(page: Path, tmp_path: Path) -> Iterator[PageRun]:
    """A page's own directory, and a broker, unless the page starts one itself."""
    blocks = blocks_of(page)
    starts_its_own = any("serve" in block.text and "&\n" in block.text for block in blocks)
    port = free_port()
    server = None
    if not starts_its_own:
        settings = {"group.initial.rebalance.delay.ms": "0"}
        server = start_millstream(tmp_path / "millstream-data", settings, port=port)
    run = PageRun(tmp_path, f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}")
    yield run
    run.stop()
    if server is not None:
        server.stop()


def with_long_ones_marked(paths: list[Path]) -> list[Any]:
    """Those that start Spark or many processes are for `make test-all`."""
    slow = {
        "archive.md",
        "checking.md",
        "derived.md",
        "derived.py",
        "embedded.md",
        "dropped_packets.py",
        "event-sourcing.md",
        "exactly-once.md",
        "excision.md",
        "failing_endpoint.py",
        "groups.md",
        "groups.py",
        "joins.md",
        "operating.md",
        "paused_receiver.py",
        "queries.md",
        "queues.md",
        "quotas.md",
        "replay.md",
        "security.md",
        "slow-consumers.md",
        "slow_consumers.py",
        "analytics.md",
        "analytics.py",
        "avro.md",
        "pipelines.md",
        "standing-queries.md",
        "stores.md",
        "cluster.md",
        "media_monitoring.py",
        "movers.py",
        "projection.py",
        "property_alerts.py",
        "shop.py",
        "real_time.py",
        "versions.md",
        "versions.py",
        "windows.md",
        "patterns.md",
        "testing-streams.md",
        "views.py",
        "test_revenue.py",
    }
    marks = [pytest.mark.slow, pytest.mark.timeout(900)]
    return [pytest.param(it, marks=marks) if it.name in slow else it for it in paths]


@pytest.mark.parametrize("page", with_long_ones_marked(PAGES), ids=name_of)
def test_page_does_what_it_says(page: Path, page_run: PageRun) -> None:
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{name_of(page)}:{block.line}"
        page_run.run(block)


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("docs/**/*.md")], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    broken = [target for target in targets if not (page.parent / target).exists()]
    assert not broken, f"{name_of(page)} links to {broken}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_commands_that_are_not_run_exist(page: Path) -> None:
    """`make` verbs and extras in ```sh blocks and in prose: they exist, even if not run here."""
    text = page.read_text(encoding="utf-8")
    for verb in set(re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)$", text, re.MULTILINE)):
        subprocess.run(["make", "-n", "".join(verb)], cwd=ROOT, check=True, capture_output=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, extras in re.findall(r"pip install '?(\w+)(?:\[([\w,]+)\])?", text):
        assert name == project["name"]
        assert set(extras.split(",")) - {""} <= project["optional-dependencies"].keys()


# Commands of the README that no page runs, and the tests that do: the file, and a line of it.
RUN_BY = {
    "pip install millstream": ("tests/test_release.py", "installs_with_every_python"),
    "make demo": ("tests/cli/test_demo.py", "def test_demo_counts_every_order_once_over_a_kill"),
    "pip install": ("tests/test_release.py", "installs_with_every_python"),
    "make install": ("tests/test_tools.py", "def test_install_says"),
    "make help": ("tests/test_tools.py", '"help"'),
    "millstream demo --rate --seconds": ("tests/cli/test_demo.py", '"demo", "--seconds", "6"'),
    "millstream demo crash": ("tests/cli/test_demo.py", 'run("demo", "crash"'),
    "millstream demo cluster": ("tests/cli/test_cluster_story.py", 'run("demo", "cluster"'),
    "millstream capture run": ("tests/cli/test_capture.py", '"capture", "run"'),
    "millstream run": ("tests/cli/test_run.py", "def test_run_with_a_broker_of_its_own"),
    "millstream serve --console": ("tests/test_release.py", "try_servers(python"),
    "millstream serve --workers": ("tests/cli/test_beside.py", '("--workers", "2")'),
    "millstream serve --node-id --zookeeper": (
        "src/millstream/testing/cluster.py",
        '["--zookeeper"',
    ),
    "millstream --install-completion": ("tests/cli/test_main.py", '"--install-completion"'),
}


def commands_in_prose(text: str) -> set[str]:
    """The commands of ```sh blocks, and those in backticks."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`((?:millstream|make|pip) [^`]+)`", prose)
    return {it for block in blocks for it in block.splitlines() if it} | set(inline)


def names_in(command: str) -> tuple[list[str], set[str]]:
    """The words of a command before its arguments and options, and the names of its options."""
    words = [it for it in re.split(r"[ ='\"]+", command) if it]
    named = [it for it in words[:3] if re.fullmatch(r"[a-z]+", it)]
    return named, {it for it in words if it.startswith("--")}


def test_every_command_of_the_readme_is_run() -> None:
    """Those of ```console blocks are run with their page; here, those of prose."""
    shown = [
        command
        for page in PAGES
        for block in blocks_of(page)
        if block.language == "console"
        for command, _ in commands_of(block)
    ]
    missing = []
    for command in commands_in_prose((ROOT / "README.md").read_text(encoding="utf-8")):
        words, options = names_in(command)
        if any(it.startswith(" ".join(words)) and all(o in it for o in options) for it in shown):
            continue
        file, line = RUN_BY.get(" ".join([*words, *sorted(options)]), ("", ""))
        if not file or line not in (ROOT / file).read_text(encoding="utf-8"):
            missing.append(command)
    assert missing == []


def arguments_of(example: Path) -> list[Path]:
    """What the example has to be given, if it can be had."""
    if example.name != "real_time.py":
        return []
    try:
        return connector_jars()
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("example", with_long_ones_marked(EXAMPLES), ids=name_of)
def test_example_runs(example: Path) -> None:
    as_test = example.name.startswith("test_")
    runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if as_test else []
    done = subprocess.run(
        [sys.executable, *runner, example, *arguments_of(example)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert example.name in (ROOT / "examples" / "README.md").read_text()


@pytest.mark.parametrize(
    "page", ["docs/reference/cli.md", "docs/guides/compatibility.md", "docs/decisions/README.md"]
)
def test_generated_page_is_current(page: str) -> None:
    done = subprocess.run(
        [sys.executable, "tools/generate_docs.py", "--check", page],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("expected", "output", "verdict"),
    [
        ("a b\n", "a    b\n\n", True),
        ("a ... c\n", "a b c\n", True),
        ("...\nc\n", "a\nb\nc\n", True),
        ("a\n...\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
        ("", "", True),
    ],
)
def test_expected_output_is_compared_line_by_line(
    expected: str, output: str, verdict: bool
) -> None:
    assert matches(expected, output) is verdict
