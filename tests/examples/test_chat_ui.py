"""The pages of `examples/chat_ui`. npm builds them if NPM_PAGES names a folder with their packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.examples.transcripts import EXAMPLES

WEB = EXAMPLES / "chat_ui" / "web"


def test_every_page_has_its_script() -> None:
    """The build makes the script of each page, and the index links both pages."""
    built = {f"dist/{Path(word).stem}.js" for word in script_of_the_build().split() if word.endswith((".js", ".jsx"))}
    for page in ("use_chat.html", "ag_ui.html"):
        text = (WEB / page).read_text(encoding="utf-8")
        assert any(f'src="{script}"' in text for script in built)
        assert page in (WEB / "index.html").read_text(encoding="utf-8")


@pytest.mark.skipif("NPM_PAGES" not in os.environ, reason="NPM_PAGES names a folder with the packages of the pages")
def test_the_pages_are_built(tmp_path: Path) -> None:
    """The bundler finds every import of the pages in the packages."""
    shutil.copytree(WEB, tmp_path / "web", ignore=shutil.ignore_patterns("node_modules", "dist"))
    (tmp_path / "web" / "node_modules").symlink_to(Path(os.environ["NPM_PAGES"], "node_modules"))
    subprocess.run(["npm", "run", "build"], cwd=tmp_path / "web", check=True, capture_output=True, timeout=120)
    assert {path.name for path in (tmp_path / "web" / "dist").iterdir()} == {"use_chat.js", "ag_ui.js"}


def script_of_the_build() -> str:
    script: str = json.loads((WEB / "package.json").read_text(encoding="utf-8"))["scripts"]["build"]
    return script
