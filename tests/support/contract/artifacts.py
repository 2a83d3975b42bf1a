"""What is published: checks of a wheel and an sdist, and the SBOM.

`python -m tests.support.contract.artifacts check DIST AGAIN` prints the faults of the files in DIST; the files in AGAIN are a second
build. `python -m tests.support.contract.artifacts sbom FILE` completes an SBOM, which has the name of its wheel.
"""

from __future__ import annotations

import email
import hashlib
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import Any

PROJECT = Path(__file__).parents[3]
HOME = "https://github.com/aswarm-dev/aswarm"
MOST_BYTES = 1_050_000  # of a wheel: 995_360 on 2026-11-27; a larger wheel needs a reason
_KINDS = {".py", ".typed", ".js", ".css", ".html", ".svg", ".txt"}
# Of a project, but not of an installed package.
_NOT_INSIDE = {
    "tests",
    "test",
    "docs",
    "examples",
    "benchmarks",
    "noxfile.py",
    "noxfile_deep.py",
    "conftest.py",
    "__pycache__",
}
_IN_SDIST = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "SECURITY.md",
    "src/aswarm/py.typed",
    "tests/conftest.py",
)
# The scripts of the playground, in src/aswarm/serve/page/vendor: its licence file names them. The bundle of htm does not name the
# version of its Preact.
BUNDLED = (("htm", "3.1.1", "Apache-2.0"), ("preact", "", "MIT"))


def faults(dist: Path, again: Path) -> Iterator[str]:
    """Yield the faults of the wheel and the sdist in a folder, and their differences from a second build."""
    files = sorted(path.name for path in dist.iterdir())
    if [Path(name).suffix for name in files] != [".whl", ".gz"]:
        yield f"there must be one wheel and one sdist, not {', '.join(files) or 'nothing'}"
        return
    wheel, sdist = (dist / name for name in files)
    for path in (wheel, sdist):
        if not (again / path.name).exists() or _digest(again / path.name) != _digest(path):
            yield f"{path.name}: a second build has other bytes"
    yield from _faults_of_wheel(wheel)
    yield from _faults_of_sdist(sdist)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _faults_of_wheel(wheel: Path) -> Iterator[str]:
    if wheel.stat().st_size > MOST_BYTES:
        yield f"{wheel.name}: it has {wheel.stat().st_size:,} bytes, more than {MOST_BYTES:,}"
    with zipfile.ZipFile(wheel) as archive:
        names = [PurePosixPath(name) for name in archive.namelist()]
        [metadata] = [name for name in names if name.name == "METADATA"]
        yield from _faults_of_metadata(email.message_from_bytes(archive.read(str(metadata))))
    for name in names:
        if name.parts[0] not in {"aswarm", metadata.parts[0]}:
            yield f"{wheel.name}: {name} is outside of the package"
        elif name.parts[0] == "aswarm" and (name.suffix not in _KINDS or _NOT_INSIDE.intersection(name.parts)):
            yield f"{wheel.name}: {name} does not belong into it"


def _faults_of_metadata(metadata: Message) -> Iterator[str]:
    for url in metadata.get_all("Project-URL", []):
        label, address = url.split(", ")
        path = re.sub(r"^/?((blob|tree)/main/)?", "", address.removeprefix(HOME))
        if not address.startswith(HOME) or not (path in {"", "issues"} or (PROJECT / path).exists()):
            yield f"the project URL {label} leads to {address}, which is not there"
    if targets := re.findall(r"\]\((?!https://|#)([^)]*)\)", str(metadata.get_payload())):
        yield f"the description has links that lead nowhere on an index: {', '.join(targets)}"


def _faults_of_sdist(sdist: Path) -> Iterator[str]:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    for name in _IN_SDIST:
        if name not in names:
            yield f"{sdist.name}: {name} is missing"
    for member in members:
        if not (member.isfile() or member.isdir()) or member.name.startswith("/") or ".." in member.name.split("/"):
            yield f"{sdist.name}: {member.name} is not a plain file"
        elif PurePosixPath(member.name).suffix in {".pyc", ".sqlite", ".whl"} or "/.venv/" in member.name:
            yield f"{sdist.name}: {member.name} does not belong into it"


def completed(sbom: dict[str, Any], version: str) -> dict[str, Any]:
    """Return an SBOM in CycloneDX's JSON with the version of aswarm, and with the bundled scripts as components."""
    components = [
        {
            "type": "library",
            "bom-ref": f"bundled:{name}",
            "name": name,
            **({"version": version, "purl": f"pkg:npm/{name}@{version}"} if version else {"purl": f"pkg:npm/{name}"}),
            "licenses": [{"license": {"id": licence}}],
            "description": "bundled: aswarm/serve/page/vendor/htm-preact.js",
        }
        for name, version, licence in BUNDLED
    ]
    about = {**sbom["metadata"], "component": {**sbom["metadata"]["component"], "version": version}}
    return {**sbom, "metadata": about, "components": [*sbom["components"], *components]}


def main(command: str, *paths: str) -> int:
    """Print the faults, or complete an SBOM. Returns the exit code."""
    if command == "sbom":
        [path] = map(Path, paths)
        sbom = completed(json.loads(path.read_text(encoding="utf-8")), path.name.split("-")[1])
        path.write_text(json.dumps(sbom, indent=2) + "\n", encoding="utf-8")
        return 0
    dist, again = map(Path, paths)
    found = list(faults(dist, again))
    print(
        "\n".join(found)
        or f"no faults: {', '.join(f'{path.name} {path.stat().st_size:,} bytes' for path in sorted(dist.iterdir()))}"
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
