"""Whether all extras resolve and install from wheels alone: on each Python of the classifiers, on platforms that are not here too.

`python -m tests.support.contract.extras WHEEL` needs uv, and takes some minutes. It resolves all extras for each platform and
Python, and installs and imports each extra on the Pythons of this machine. It prints a table, and fails for a result that is not in
`EXCEPTIONS`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[3]
SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = list(SETTINGS["optional-dependencies"])
PYTHONS = [each.rpartition(" ")[2] for each in SETTINGS["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]
# uv's names for the platforms, see `uv pip compile --help`.
PLATFORMS = {
    "Linux, x86-64": "x86_64-manylinux_2_28",
    "Linux, arm64": "aarch64-manylinux_2_28",
    "Alpine Linux (musl), x86-64": "x86_64-unknown-linux-musl",
    "macOS, arm64": "aarch64-apple-darwin",
    "macOS, x86-64": "x86_64-apple-darwin",
    "Windows, x86-64": "x86_64-pc-windows-msvc",
    "Windows, arm64": "aarch64-pc-windows-msvc",
}
# Extras without wheels on a platform, by platform and Python.
_NO_PSYCOPG = {"postgres", "durable"}
_NO_YAML = {"evals", "skills", "cli"}
_NO_MONTY = {"code"}
EXCEPTIONS = {("Windows, arm64", python): _NO_PSYCOPG | _NO_MONTY for python in PYTHONS}
EXCEPTIONS["Windows, arm64", "3.11"] = _NO_PSYCOPG | _NO_MONTY | _NO_YAML
# A module that imports the packages of an extra; for a new extra at least aswarm.
MODULES = {
    "aiohttp": "aiohttp",
    "otel": "aswarm.otel",
    "prices": "genai_prices",
    "mcp": "aswarm.mcp",
    "postgres": "psycopg",
    "repl": "aswarm.repl",
    "evals": "aswarm.evals",
    "skills": "aswarm.skills",
    "serve": "aswarm.serve",
    "durable": "aswarm.durable",
    "cli": "aswarm.cli",
    "code": "pydantic_monty",
}


def resolved(extras: list[str], platform: str, python: str) -> dict[str, str] | None:
    """Return the versions of the packages, all from wheels, or None if some package has no wheel."""
    options = [f"--extra={extra}" for extra in extras] if extras != EXTRAS else ["--all-extras"]
    options += ["--only-binary=:all:", f"--python-platform={PLATFORMS[platform]}", f"--python-version={python}"]
    command = ["uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header", "pyproject.toml", *options]
    found = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if found.returncode:
        print(f"{platform}, {python}, {extras}: {found.stderr.strip().splitlines()[-1][:200]}", file=sys.stderr)
        return None
    return dict(re.findall(r"^([\w.-]+)==(\S+)", found.stdout, re.MULTILINE))


def missing(platform: str, python: str, newest: dict[str, str]) -> set[str]:
    """Return the extras that do not resolve. Prints the packages whose newest version has no wheel there."""
    versions = resolved(EXTRAS, platform, python)
    if versions is not None:
        older = {name: version for name, version in versions.items() if newest.get(name, version) != version}
        print(f"{platform}, {python}: {len(versions)} packages; other versions: {older or 'none'}", file=sys.stderr)
        return set()
    # `cli` contains `repl` and `evals`, and `durable` contains `postgres`: so ask for each.
    return {extra for extra in EXTRAS if resolved([extra], platform, python) is None}


def not_installed(wheel: Path, python: str) -> set[str] | None:
    """Install and import each extra in an environment of its own. Returns the failing extras, or None without that Python."""
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(["uv", "venv", "--quiet", f"--python={python}", folder], check=False, capture_output=True)
        if made.returncode:
            return None
        return {extra for extra in EXTRAS if not _installs(wheel, extra, Path(folder))}


def _installs(wheel: Path, extra: str, environment: Path) -> bool:
    program = environment / "bin/python"
    target = f"aswarm[{extra}] @ {wheel.resolve().as_uri()}"
    # With the packages of the extra only: others of the extra before it would hide that one is missing.
    subprocess.run(["uv", "venv", "--quiet", "--clear", f"--python={program.resolve()}", environment], check=True)
    install = ["uv", "pip", "install", "--quiet", f"--python={program}", "--only-binary=:all:", target]
    load = [program, "-c", f"import {MODULES.get(extra, 'aswarm')}"]
    return all(subprocess.run(command, check=False).returncode == 0 for command in (install, load))


def main(wheel: str) -> int:
    """Print the tables. Returns the exit code."""
    newest = resolved(EXTRAS, "Linux, x86-64", PYTHONS[-2]) or {}
    wrong = 0
    print(f"| wheels of all extras for | {' | '.join(PYTHONS)} |\n|---|{'---|' * len(PYTHONS)}")
    for platform in PLATFORMS:
        lacking = [missing(platform, python, newest) for python in PYTHONS]
        cells = [f"all but {', '.join(f'`{each}`' for each in sorted(each))}" if each else "all" for each in lacking]
        print(f"| {platform} | {' | '.join(cells)} |", flush=True)
        wrong += sum(
            each != EXCEPTIONS.get((platform, python), set()) for python, each in zip(PYTHONS, lacking, strict=True)
        )
    failed = {python: not_installed(Path(wheel), python) for python in PYTHONS}
    words = ["not tried" if each is None else f"fails: {sorted(each)}" if each else "all" for each in failed.values()]
    print(f"| installed and imported here | {' | '.join(words)} |")
    return bool(wrong or any(failed.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
