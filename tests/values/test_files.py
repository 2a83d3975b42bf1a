"""Files that are replaced: whole or not at all, with the mode that they had."""

from __future__ import annotations

from pathlib import Path

import pytest

from aswarm._files import replacing


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """If the file cannot be replaced, the old content stays and no temporary file is left."""
    place = tmp_path / "taken"
    place.mkdir()
    with pytest.raises(OSError, match="taken"), replacing(place) as file:
        file.write(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(("private", "expected"), [(False, 0o640), (True, 0o600)])
def test_a_file_that_is_replaced_keeps_its_mode_unless_it_is_private(
    tmp_path: Path, private: bool, expected: int
) -> None:
    """Results stay readable for the same users as before; a conversation is readable for its owner only."""
    place = tmp_path / "kept.json"
    place.write_text("old", encoding="utf-8")
    place.chmod(0o640)
    with replacing(place, private=private) as file:
        [fresh] = set(tmp_path.iterdir()) - {place}
        assert fresh.stat().st_mode & 0o777 == expected  # before it has any content
        file.write(b"new")
    assert (place.read_bytes(), place.stat().st_mode & 0o777) == (b"new", expected)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
