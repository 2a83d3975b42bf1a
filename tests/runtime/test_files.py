"""Files that are replaced: whole or not at all, with the mode that they had. And files that one owner locks."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import pytest

from aswarm._runtime import files, seams
from aswarm._runtime.files import SideLock, lock, replacing


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """If the file cannot be replaced, the old content stays and no temporary file is left."""
    place = tmp_path / "taken"
    place.mkdir()
    with pytest.raises(OSError, match="taken"), replacing(place) as file:
        file.write(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    """Results stay readable for the same users as before."""
    place = tmp_path / "kept.json"
    place.write_text("old", encoding="utf-8")
    place.chmod(0o640)
    with replacing(place) as file:
        [fresh] = set(tmp_path.iterdir()) - {place}
        assert fresh.stat().st_mode & 0o777 == 0o640  # before it has any content
        file.write(b"new")
    assert (place.read_bytes(), place.stat().st_mode & 0o777) == (b"new", 0o640)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]


# --- locks ---


def test_a_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "find_spec", lambda _: None)
    with FileIO(tmp_path / "file", "w") as file:
        assert lock(file)


def test_a_file_has_one_owner_at_a_time(tmp_path: Path) -> None:
    """The lock lives beside the file; it ends with its owner, and nothing is left of it."""
    path = str(tmp_path / "file")
    owner = SideLock.acquire(path, 0)
    assert owner is not None
    assert SideLock.acquire(path, 0.03) is None
    owner.release()
    again = SideLock.acquire(path, 0)
    assert again is not None
    again.release()
    assert list(tmp_path.iterdir()) == []


def test_a_side_file_that_was_left_behind_does_no_harm(tmp_path: Path) -> None:
    """A killed process leaves it."""
    (tmp_path / "file-lock").touch()
    owner = SideLock.acquire(str(tmp_path / "file"), 0)
    assert owner is not None
    owner.release()


@pytest.mark.parametrize("another", [False, True], ids=["none", "another"])
def test_a_side_file_that_its_last_owner_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, another: bool
) -> None:
    """A lock on a file that has no name any more locks nothing: the file of that name is locked then."""
    side, opened = tmp_path / "file-lock", []

    def lock_late(file: FileIO) -> bool:
        opened.append(file)
        if len(opened) == 1:
            side.unlink()
            if another:
                side.touch()
        return lock(file)

    monkeypatch.setattr(files, "lock", lock_late)
    owner = SideLock.acquire(str(tmp_path / "file"), 0)  # at once, although there is no time to wait for another owner
    assert owner is not None
    assert len(opened) == 2
    assert SideLock.acquire(str(tmp_path / "file"), 0) is None
    owner.release()


def test_without_locks_there_is_no_side_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows it would lock nothing, and could not be removed while it is open."""
    monkeypatch.setattr(files, "find_spec", lambda _: None)
    owners = [SideLock.acquire(str(tmp_path / "file"), 0) for _ in range(2)]
    assert list(tmp_path.iterdir()) == []
    for owner in owners:
        assert owner is not None
        owner.release()


def test_a_forked_child_keeps_no_lock(tmp_path: Path) -> None:
    """Its copies are closed at the fork; giving the lock up there does not take it from the parent."""
    parents, copied = SideLock.acquire(str(tmp_path / "file"), 0), SideLock.acquire(str(tmp_path / "other"), 0)
    assert parents is not None
    assert copied is not None
    seams._abandon_in_child()
    copied.release()
    assert (tmp_path / "other-lock").exists()
    reopened = SideLock.acquire(str(tmp_path / "file"), 0)
    assert reopened is not None
    reopened.release()
