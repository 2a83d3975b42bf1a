"""The checks of `nox -s release`: the contents of a wheel and an sdist."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.contract.artifacts import _IN_SDIST, _KINDS, BUNDLED, HOME, MOST_BYTES, completed, faults
from tests.support.contract.documentation import PROJECT

METADATA = (
    f"Name: aswarm\nProject-URL: Source, {HOME}\nProject-URL: Documentation, {HOME}/tree/main/docs\n\n[a]({HOME})\n"
)
WHEEL = {"aswarm/__init__.py": "", "aswarm/testing/_answer.py": "", "aswarm-0.1.0.dist-info/METADATA": METADATA}
SDIST = dict.fromkeys(_IN_SDIST, "")


def built(folder: Path, wheel: Mapping[str, str] = WHEEL, sdist: Mapping[str, str] = SDIST) -> Path:
    """Write a wheel and an sdist with these files."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "aswarm-0.1.0-py3-none-any.whl", "w") as archive:
        for name, text in wheel.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    with tarfile.open(folder / "aswarm-0.1.0.tar", "w") as packed:
        for name, text in sdist.items():
            member = tarfile.TarInfo(f"aswarm-0.1.0/{name}")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    (folder / "aswarm-0.1.0.tar").rename(folder / "aswarm-0.1.0.tar.gz")
    return folder


def found(tmp_path: Path, wheel: Mapping[str, str] = WHEEL, sdist: Mapping[str, str] = SDIST) -> list[str]:
    dist = built(tmp_path / "dist", wheel, sdist)
    return list(faults(dist, dist))


def test_a_good_wheel_and_sdist_have_no_fault(tmp_path: Path) -> None:
    """A second build has the same bytes."""
    assert list(faults(built(tmp_path / "dist"), built(tmp_path / "again"))) == []


def test_a_build_that_is_not_reproducible_is_a_fault(tmp_path: Path) -> None:
    """Each file is compared with the file of the second build."""
    other = {**WHEEL, "aswarm/__init__.py": "1"}
    [fault] = faults(built(tmp_path / "dist"), built(tmp_path / "again", other))
    assert fault == "aswarm-0.1.0-py3-none-any.whl: a second build has other bytes"


def test_the_package_is_not_larger_than_a_wheel_may_be() -> None:
    """A change that adds too much fails here, and not only at the next release. A wheel has 30 kB of metadata, too."""
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((PROJECT / "src/aswarm").rglob("*")):
            if path.suffix in _KINDS:
                archive.write(path, path.relative_to(PROJECT))
    assert package.tell() + 30_000 <= MOST_BYTES


@pytest.mark.parametrize(
    "name",
    ["aswarm/tests/test_a.py", "tests/test_a.py", "aswarm/noxfile.py", "aswarm/data.sqlite", "aswarm/__pycache__/a.py"],
)
def test_a_file_that_is_not_of_the_package_is_a_fault(tmp_path: Path, name: str) -> None:
    """No test, no tool and no data of a developer is in a wheel."""
    [fault] = found(tmp_path, {**WHEEL, name: ""})
    assert name in fault


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (f"Project-URL: Forum, {HOME}/discussions\n", "the project URL Forum leads to"),
        ("Project-URL: Home, https://aswarm.example\n", "the project URL Home leads to"),
        ("\n[guide](docs/guides/tools.md)\n", "links that lead nowhere on an index: docs/guides/tools.md"),
    ],
)
def test_an_address_that_is_not_there_is_a_fault(tmp_path: Path, line: str, fault: str) -> None:
    """Addresses of the project lead to files of the repository; links of the description are absolute."""
    [text] = found(tmp_path, {**WHEEL, "aswarm-0.1.0.dist-info/METADATA": f"Name: aswarm\n{line}"})
    assert fault in text


def test_the_sbom_names_the_scripts_of_the_page() -> None:
    """The SBOM has the scripts of the licence file beside them."""
    sbom = completed({"metadata": {"component": {"name": "aswarm"}}, "components": [{"name": "anyio"}]}, "0.1.0")
    assert sbom["metadata"]["component"] == {"name": "aswarm", "version": "0.1.0"}
    assert [each["name"] for each in sbom["components"]] == ["anyio", "htm", "preact"]
    licence = (PROJECT / "src/aswarm/serve/page/vendor/LICENSE.txt").read_text(encoding="utf-8")
    assert re.search(r"npm package htm (\S+),", licence)[1] == BUNDLED[0][1]  # type: ignore[index]
