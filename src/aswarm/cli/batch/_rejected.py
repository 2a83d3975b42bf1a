"""The file for lines that `aswarm batch` cannot use, beside the output. Decides its name and the form of its lines."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from ._outcomes import encoded
from ._output import writing
from ._records import BadLine


class RejectedLines:
    """The file for rejected lines. It is made for the first line, and no line is added twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._file: BinaryIO | None = None
        self._kept: set[bytes] = set()

    def add(self, bad: BadLine) -> None:
        """Keep a line, with its number and the reason."""
        with writing(self.path):
            self._add(bad)
        self.count += 1

    def _add(self, bad: BadLine) -> None:
        if self._file is None:
            self._file = self.path.open("a+b")
            self._file.seek(0)
            self._kept.update(self._file)
            if any(not line.endswith(b"\n") for line in self._kept):  # cut off by a crash
                self._file.write(b"\n")
        line = encoded({"line": bad.line, "error": bad.error, "text": bad.text})
        if line not in self._kept:
            self._kept.add(line)
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def rejected_path(output: str) -> Path:
    """The file for rejected lines beside an output: `out.rejected.jsonl` for `out.jsonl`."""
    path = Path(output)
    if output == "-" or (path.exists() and not path.is_file()):  # a stream has no folder
        path = Path("batch.jsonl")
    return path.with_name(f"{path.stem}.rejected.jsonl")
