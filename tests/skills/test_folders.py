"""Folders of skills: which files belong to a skill, and what happens to them after they were read."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import aswarm.skills
from aswarm import Agent, ConfigurationError, ToolError
from aswarm.skills import Skills, skills
from tests.support.skills.folders import write_skill

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")


def read_file(read: Skills, path: str, start: int = 0) -> str:
    """Return the result of `read_skill_file` for the skill `forms`."""
    made = read.functions[1].function("forms", path, start)
    with pytest.raises(StopIteration) as ended:  # it never waits
        made.send(None)
    return str(ended.value.value)


def load(read: Skills, name: str = "forms") -> str:
    """Return the result of `load_skill`."""
    made = read.functions[0].function(name)
    with pytest.raises(StopIteration) as ended:
        made.send(None)
    return str(ended.value.value)


def test_a_folder_is_a_skill_or_contains_skills(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Several folders are read; their skills are in the order of their names, and the first of two equal names wins."""
    for name in ("all/zip", "all/audit", "all/.hidden", "one/forms", "more/zip"):
        write_skill(tmp_path / name)
    write_skill(tmp_path / "all/notes/deep")  # a skill is one level below
    (tmp_path / "all/README.md").touch()
    with caplog.at_level(logging.WARNING):
        read = skills(tmp_path / "all", os.fspath(tmp_path / "one/forms"), tmp_path / "more")
    assert read.instructions.splitlines()[1:] == [
        "- audit: Task of audit.",
        "- forms: Task of forms.",
        "- zip: Task of zip.",
    ]
    assert read.by_name["zip"].folder == tmp_path / "all/zip"
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        f"left out, because {tmp_path / 'all/zip'} has the same name 'zip'"
    ]


@pytest.mark.parametrize("path", ["none", "empty", "empty/file.txt", "bad"])
def test_a_folder_without_a_skill_is_a_mistake(path: str, tmp_path: Path) -> None:
    """The error names the folder."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/file.txt").touch()
    write_skill(tmp_path / "bad", "no front matter")
    with pytest.raises(ConfigurationError) as raised:
        skills(tmp_path / path)
    assert str(tmp_path / path) in str(raised.value)


def test_a_path_is_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`skills(".")` knows the name of its folder."""
    monkeypatch.chdir(write_skill(tmp_path / "forms", "---\ndescription: x\n---\n"))
    assert [*skills(".").by_name] == ["forms"]


FILES: dict[str, str | bytes] = {
    "references/b.md": "of b",
    "a.csv": "1,2\r\n",
    "fonts/f.ttf": b"\0\1\xff",
    "long.txt": "x" * 1_000_001,
    ".env": "secret",
    ".git/config": "secret",
    "scripts/__pycache__/run.pyc": b"\0",
    "scripts/run.py": "print(1)",
    "scripts/deep/SKILL.md": "no skill of its own",
}


def test_the_files_of_a_skill(tmp_path: Path) -> None:
    """All visible files are listed in one order; those that are no text, or too large, have no text."""
    read = skills(write_skill(tmp_path / "forms", files=FILES))
    assert read.by_name["forms"].files == {
        "a.csv": "1,2\r\n",
        "long.txt": None,
        "fonts/f.ttf": None,
        "references/b.md": "of b",
        "scripts/run.py": "print(1)",
        "scripts/deep/SKILL.md": "no skill of its own",
    }
    assert load(read) == (
        "Do it.\n\nFiles, for read_skill_file:\n- a.csv\n- long.txt (not a text)\n- fonts/f.ttf (not a text)\n"
        "- references/b.md\n- scripts/run.py\n- scripts/deep/SKILL.md"
    )


@pytest.mark.parametrize(
    "path", ["references/b.md", "./references/b.md", "references//b.md", "scripts/../references/b.md"]
)
def test_a_file_has_one_text_under_the_usual_spellings(path: str, tmp_path: Path) -> None:
    """Models write paths in several ways."""
    assert read_file(skills(write_skill(tmp_path / "forms", files=FILES)), path) == "of b"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("references/B.md", "has no file 'references/B.md'. Similar files: references/b.md."),
        ("../other/SKILL.md", "has no file '../other/SKILL.md'"),
        ("/etc/passwd", "has no file '/etc/passwd'"),
        ("C:\\secret.txt", "has no file"),
        (".env", "has no file '.env'"),
        ("references", "has no file 'references'"),
        ("", "has no file '.'"),
        ("a\0b", "has no file"),
        ("fonts/f.ttf", "is not a text, or too large"),
    ],
)
def test_only_listed_files_can_be_read(path: str, text: str, tmp_path: Path) -> None:
    """Any other path is an error for the model, with similar paths."""
    write_skill(tmp_path / "other")
    with pytest.raises(ToolError, match=r"(?s).*") as raised:
        skills(write_skill(tmp_path / "forms", files=FILES)).read("forms", path)
    assert text in str(raised.value)


def test_an_unknown_skill_is_an_error_for_the_model(tmp_path: Path) -> None:
    """The error lists the names."""
    write_skill(tmp_path / "forms")
    write_skill(tmp_path / "zip")
    with pytest.raises(ToolError, match=r"There is no skill 'form'\. The skills are: forms, zip\."):
        skills(tmp_path).read("form", "SKILL.md")


Change = Callable[[Path], object]
CHANGES: dict[str, Change] = {
    "another text": lambda path: path.write_text("changed"),
    "a link": lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
    "a fifo": lambda path: (path.unlink(), os.mkfifo(path)),
    "no file": lambda path: path.unlink(),
    "a folder as link": lambda path: (shutil.rmtree(path.parent), path.parent.symlink_to("/etc")),
}


@needs_links
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_reading_changes_nothing(change: str, tmp_path: Path) -> None:
    """The functions return the texts that were read."""
    folder = write_skill(tmp_path / "forms", files={"references/passwd": "of the skill"})
    read = skills(folder)
    for name in ("SKILL.md", "references/passwd"):
        if (folder / name).exists() and (name != "SKILL.md" or change != "a folder as link"):
            CHANGES[change](folder / name)
    assert (read_file(read, "references/passwd"), read_file(read, "SKILL.md")) == ("of the skill", "Do it.")


@needs_links
def test_links_and_special_files_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link to a file or a folder, a FIFO and a socket are no files of a skill; a linked skill is named in a warning."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    folder = write_skill(tmp_path / "all/forms", files={"references/b.md": "of b"})
    (folder / "key").symlink_to(secret / "key")
    (folder / "references/more").symlink_to(secret)
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    (tmp_path / "all/linked").symlink_to(write_skill(tmp_path / "linked"))
    (tmp_path / "all/key").symlink_to(secret / "key")
    (tmp_path / "all/nowhere").symlink_to(tmp_path / "nowhere")
    for name, replace in {"pipe": os.mkfifo, "to-key": lambda path: path.symlink_to(secret / "key")}.items():
        (tmp_path / "all" / name).mkdir()
        replace(tmp_path / "all" / name / "SKILL.md")
    with caplog.at_level(logging.WARNING):
        read = skills(tmp_path / "all")
    assert {name: [*skill.files] for name, skill in read.by_name.items()} == {"forms": ["references/b.md"]}
    assert [line.removeprefix(f"the skill {tmp_path}/all/").partition(",")[0] for line in caplog.messages] == [
        "linked: left out",
        "pipe: left out",
        "to-key: left out",
    ]


def test_a_skill_with_many_files_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first thousand files are read, and a result lists 200 files."""
    files = {f"{number:04}.txt": "" for number in range(1_001)}
    with caplog.at_level(logging.WARNING):
        read = skills(write_skill(tmp_path / "forms", files=files))
    assert [*read.by_name["forms"].files][-1:] == ["0999.txt"]
    assert "more than 1,000 files" in caplog.text
    assert load(read).endswith("- 0199.txt\n- and 800 more")


def test_a_long_text_is_read_in_parts(tmp_path: Path) -> None:
    """Each part names the call for the next; together they are the text, also for `SKILL.md` itself."""
    text = "".join(f"{number:>9}\n" for number in range(7_000))
    read = skills(write_skill(tmp_path / "forms", files={"long.txt": text}, body=text))
    parts = [read_file(read, "long.txt", start) for start in (0, 30_000, 60_000)]
    assert "".join(part.partition("\n\n[")[0] for part in parts) == text
    assert parts[0].endswith("[Characters 0 to 30000 of 70000. The rest: read_skill_file(start=30000).]")
    assert parts[2].endswith("[Characters 60000 to 70000 of 70000.]")
    assert read_file(read, "long.txt", -5) == parts[0]
    assert read_file(read, "long.txt", 90_000) == "\n\n[Characters 90000 to 70000 of 70000.]"
    assert "The rest: read_skill_file('SKILL.md', start=30000).]\n\nFiles" in load(read)
    assert read_file(read, "SKILL.md", 60_000).startswith(text.strip()[60_000:60_100])


def test_without_pyyaml_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing `aswarm.skills` needs pyyaml."""
    for name in [name for name in sys.modules if name.startswith("aswarm.skills")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(
        ConfigurationError, match=r'aswarm\.skills needs the package pyyaml: install the extra "skills"'
    ):
        __import__("aswarm.skills")


def test_an_agent_field_of_this_name_is_explained() -> None:
    """Other libraries have `Agent(skills=...)`."""
    with pytest.raises(ConfigurationError, match=r"use aswarm\.skills"):
        Agent(skills=["folder"])  # type: ignore[call-overload]
    assert aswarm.skills.skills is skills
