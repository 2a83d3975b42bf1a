"""Builds the site, checks it, and shows it on loopback."""

from __future__ import annotations

import functools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from . import checks, copies, pages, reference

HERE = Path(__file__).parent
PORT = 8010


def build(folder: Path) -> int:
    """Build the site into a folder; 0 if nothing is wrong. What is wrong is printed, all of it."""
    source = folder.with_name(f"{folder.name}-source")
    wrong = [f"public name without an entry in the reference: {name}" for name in reference.missing_names()]
    wrong += [f"orphan page, the index of its folder does not link to it: {page}" for page in pages.orphans()]
    try:
        wrong += pages.write_copy(source)
    except reference.UndocumentedName as error:
        wrong.append(str(error))
    wrong = wrong or pages.broken_links(source)
    if not wrong:
        copies.write_copies(source, folder)
        for page in source.rglob("*.md"):
            place = page.relative_to(source).as_posix()
            text = pages.with_pictures(page.read_text(encoding="utf-8"), source)
            page.write_text(text + pages.navigation(place), encoding="utf-8")
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto", "-b", "html"]
        done = subprocess.run([*command, "-c", HERE, "-d", f"{source}-state", source, folder], check=False)  # noqa: S603
        if done.returncode:
            wrong.append("Sphinx found mistakes, see above")
        unknown = reference.places().keys() - checks.searchable(folder)
        wrong += [f"the search does not know the name {name}" for name in sorted(unknown)]
        wrong += checks.check(folder)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def serve(folder: Path) -> None:
    """Show the site on loopback, and build it again when a page or a docstring changes. Until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        _build_apart(folder)
        handler = functools.partial(SimpleHTTPRequestHandler, directory=os.fspath(folder))
        server = ThreadingHTTPServer(("127.0.0.1", PORT), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{PORT}")
        before = _times()
        while True:
            time.sleep(1)
            if (now := _times()) != before:
                before = now
                _build_apart(folder)


def _build_apart(folder: Path) -> None:
    """Build in a new process, because this one remembers the source that it has read."""
    process = multiprocessing.get_context("spawn").Process(target=build, args=(folder,))
    process.start()
    process.join()


def _times() -> dict[Path, float]:
    files = [*pages.site_pages(), *HERE.glob("static/*"), *(pages.PROJECT / "src").rglob("*.py")]
    return {file: file.stat().st_mtime for file in files if file.exists()}
