"""Builds the site, checks it, and shows it on loopback."""

from __future__ import annotations

import functools
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
    """Build the site into a folder. Return 0 if there is no fault; all faults are printed."""
    source = folder.with_name(f"{folder.name}-source")
    wrong = [f"public name without an entry in the reference: {name}" for name in reference.missing_names()]
    wrong += pages.write_copy(source)
    if not wrong:
        names = reference.entries()
        wrong += [f"public name without a docstring: {name}" for name in reference.undocumented(names)]
        texts = copies.texts_of(source)
        pages.add_directives(source)
        modules = map(reference.page_of, reference.modules())
        if not (_sphinx(source, folder, "html") and _sphinx(source, source / "text", "text", *modules)):
            wrong.append("Sphinx printed warnings or errors, see above")
    if not wrong:
        for text in (source / "text/reference").glob("*.txt"):
            title, _, rest = text.read_text(encoding="utf-8").split("\n", 2)
            texts[f"reference/{text.stem}.md"] = f"# {title.strip(chr(34))}\n{rest}"
        copies.write_copies(texts, source, folder)
        wrong += [f"the search does not know the name {name}" for name in sorted({*names} - checks.searchable(folder))]
        wrong += checks.check(folder)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def _sphinx(source: Path, folder: Path, builder: str, *files: Path) -> bool:
    """Run Sphinx for the given files, or for all files. Return whether it had no warning."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto", "-b", builder]
    command += ["-D", "html_theme=basic"] if builder != "html" else []  # Furo writes files of HTML
    paths = [source, folder, *(source / file.relative_to(pages.DOCS) for file in files)]
    settings = ["-c", os.fspath(HERE), "-d", f"{source}-state", *map(os.fspath, paths)]
    return subprocess.run([*command, *settings], check=False).returncode == 0  # noqa: S603


class _Handler(SimpleHTTPRequestHandler):
    """Serves the site, and the files of the project that the site links to.

    Links to files of the project lead above `build/site`, but a browser cannot go above the root of a host.
    """

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".py": "text/plain", ".md": "text/plain;charset=utf-8"}

    def translate_path(self, path: str) -> str:
        """Return the file of the site, or else the file with the same path in the project. Hidden files are not served."""
        file = super().translate_path(path)
        place = os.path.relpath(file, self.directory)
        return file if os.path.exists(file) or "/." in f"/{place}" else os.fspath(pages.PROJECT / place)  # noqa: PTH110


def serve(folder: Path) -> None:
    """Serve the site on loopback until Ctrl-C, and build it again when a page or a docstring changes."""
    # A new process, because this process has imported the old source.
    build_again = [sys.executable, "-m", "docs._site", "build", os.fspath(folder)]
    with suppress(KeyboardInterrupt):
        handler = functools.partial(_Handler, directory=os.fspath(folder))
        server = ThreadingHTTPServer(("127.0.0.1", PORT), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{PORT}")
        before: dict[Path, float] = {}
        while True:
            if (now := _times()) != before:
                before = now
                subprocess.run(build_again, check=False)  # noqa: S603
            time.sleep(1)


def _times() -> dict[Path, float]:
    files = [*pages.site_pages(), *HERE.glob("static/*"), *(pages.PROJECT / "src").rglob("*.py")]
    return {file: file.stat().st_mtime for file in files if file.exists()}
