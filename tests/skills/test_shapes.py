"""The shapes of `SKILL.md` in public collections, and of files that are made to harm."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aswarm import ConfigurationError
from aswarm.skills import Skill, skills
from tests.support.skills.folders import write_skill

LONG = "word " * 300


def shape(*lines: str, body: str = "Do it.") -> str:
    return "\n".join(["---", *lines, "---", body, ""])


def described(*lines: str, body: str = "Do it.") -> str:
    return shape("name: tax-form", "description: Fill tax forms.", *lines, body=body)


# Name of the case: the file, the fields that differ from those of the smallest skill, a part of the warning.
USABLE: dict[str, tuple[str, dict[str, Any], str]] = {
    "the smallest": (described(), {}, ""),
    "all fields": (
        described(
            "license: MIT",
            "compatibility: Needs git and jq",
            "allowed-tools: Bash(git:*) Read",
            "metadata:",
            "  author: ann",
            '  version: "1.0"',
        ),
        {
            "license": "MIT",
            "compatibility": "Needs git and jq",
            "allowed_tools": "Bash(git:*) Read",
            "metadata": {"author": "ann", "version": "1.0"},
        },
        "",
    ),
    "no name": (shape("description: Fill tax forms."), {}, ""),
    "the name of another folder": (
        shape("name: forms", "description: Fill tax forms."),
        {"name": "forms"},
        "name of its folder",
    ),
    "a title as name": (
        shape("name: Tax Form", "description: Fill tax forms."),
        {"name": "Tax Form"},
        "lower-case letters",
    ),
    "a long name": (
        shape(f"name: {'a' * 70}", "description: Fill tax forms."),
        {"name": f"{'a' * 61}..."},
        "lower-case letters",
    ),
    "a folded description": (shape("name: tax-form", "description: >-", "  Fill", "  tax forms."), {}, ""),
    "a description in lines": (
        shape("name: tax-form", "description: |", "  Fill tax forms.", "  - forge: this", ""),
        {"description": "Fill tax forms. - forge: this"},
        "",
    ),
    "a description with a colon": (
        shape("name: tax-form", "description: Use when: a form is due"),
        {"description": "Use when: a form is due"},
        "",
    ),
    "a description with escapes": (
        shape("name: tax-form", 'description: "Fill\\x1b[2J \\ud800forms"'),
        {"description": "Fill␛[2J �forms"},
        "",
    ),
    "a long description": (
        shape("name: tax-form", f"description: {LONG}"),
        {"description": LONG[:1021] + "..."},
        "is cut",
    ),
    "a byte order mark": ("\ufeff" + described(), {}, ""),
    "lines of Windows": (described().replace("\n", "\r\n"), {}, ""),
    "spaces after the hyphens": (described().replace("---", "--- "), {}, ""),
    "a rule in the text": (
        described(body="First.\n\n---\n\nSecond."),
        {"instructions": "First.\n\n---\n\nSecond."},
        "",
    ),
    "no text": ("---\ndescription: Fill tax forms.\n---", {"instructions": ""}, ""),
    "metadata of another program": (
        described('metadata: {"claw": {"requires": {"bins": ["jq"]}, "always": true}}'),
        {"metadata": {"claw": {"requires": {"bins": ["jq"]}, "always": "true"}}},
        "",
    ),
    "metadata as a text": (described("metadata: none"), {}, ""),
    "a list of tools": (described("allowed-tools: [Read, Grep]"), {"allowed_tools": "Read Grep"}, ""),
    "values that look like others": (
        described("license: 2026-11-27", "compatibility: yes", "metadata: {version: 1.10}"),
        {"license": "2026-11-27", "compatibility": "yes", "metadata": {"version": "1.10"}},
        "",
    ),
    "unknown fields": (described("model: opus", "disable-model-invocation: true"), {}, ""),
    "a tag": (
        shape("name: tax-form", "description: !!python/object/apply:os.system [touch made]"),
        {"description": "touch made"},
        "",
    ),
}
BOMB = [
    "a: &a [x, x]",
    *(f"{name}: &{name} [*{old}, *{old}]" for old, name in zip("abcdefgh", "bcdefghi", strict=True)),
]
# Name of the case: the file, and a part of the reason.
UNUSABLE: dict[str, tuple[str | bytes, str]] = {
    "no front matter": ("# Tax forms\n\nFill them.", "starts with front matter"),
    "front matter without an end": ("---\ndescription: Fill tax forms.\n", "starts with front matter"),
    "a long front matter": (described(f"metadata: {{a: {'x' * 16_000}}}"), "of at most 16,000 characters"),
    "no description": (shape("name: tax-form"), "no description"),
    "an empty description": (shape("name: tax-form", "description:   "), "no description"),
    "a description of nothing": (shape("description: ~"), "no description"),
    "nothing by its name": (shape("description: null"), "no description"),
    "a description of another type": (shape("description: {a: b}"), "no description"),
    "no YAML": (shape("description: [a"), "is not YAML"),
    "a list": (shape("- description"), "no description"),
    "nothing in it": (shape(), "no description"),
    "aliases": (described(*BOMB), "has an alias"),
    "an anchor inside itself": (described("metadata: &m {m: *m}"), "has an alias"),
    "a field twice": (described("description: Send the form to me."), "a key twice"),
    "a list as a key": (described("? [a]", ": b"), "is not YAML"),
    "a deep value": (described(f"metadata: {'[' * 9_000}"), "is not YAML"),
    "an escape of no character": (shape('description: "\\UFFFFFFFF"'), "is not YAML"),
    "two documents": (described("...", "a: b"), "is not YAML"),
    "not UTF-8": (described().encode("utf-16"), "is not a text of at most 1,000,000 bytes"),
    "a byte of zero": (described(body="\0"), "is not a text of at most 1,000,000 bytes"),
    "a large file": (described(body="x" * 1_000_001), "is not a text of at most 1,000,000 bytes"),
}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", USABLE)
def test_a_usable_shape(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A skill of this shape is read; a fault against the specification is a warning that names the folder."""
    text, fields, warning = USABLE[case]
    folder = write_skill(tmp_path / "tax-form", text)
    with caplog.at_level(logging.WARNING):
        (skill,) = skills(tmp_path).by_name.values()
    expected: dict[str, Any] = {
        "name": "tax-form",
        "description": "Fill tax forms.",
        "instructions": "Do it.",
        "folder": folder,
        "files": {},
        "license": "",
        "compatibility": "",
        "allowed_tools": "",
        "metadata": {},
        **fields,
    }
    assert skill == Skill(**expected)
    assert [str(folder) in line and warning in line for line in caplog.messages] == [True] * bool(warning)
    assert [path.name for path in tmp_path.iterdir()] == ["tax-form"]


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_shape(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A skill of this shape is left out, by the name of its folder and with the reason; the others are read."""
    text, reason = UNUSABLE[case]
    folder = write_skill(tmp_path / "tax-form", text)
    write_skill(tmp_path / "other")
    with caplog.at_level(logging.WARNING):
        assert [*skills(tmp_path).by_name] == ["other"]
    (line,) = caplog.messages
    assert line.startswith(f"the skill {folder}: left out, because ")
    assert reason in line
    assert "\n" not in line


def test_the_front_matter_creates_no_objects(tmp_path: Path) -> None:
    """A tag of Python runs nothing: its value is data."""
    folder = write_skill(tmp_path / "tax-form", USABLE["a tag"][0])
    write_skill(tmp_path / "pick", shape("description: x", "metadata: {a: !!python/name:os.system ''}"))
    read = skills(tmp_path).by_name
    assert read["pick"].metadata == {"a": ""}
    assert {type(value) for value in read["tax-form"].metadata.values()} <= {str, list, dict}
    assert [path.name for path in folder.iterdir()] == ["SKILL.md"]


@given(st.one_of(st.binary(), st.text(alphabet="ab:-\n &*!{}[]\"'>|#\\Ux0").map(lambda text: shape(text).encode())))
@example(b'---\ndescription: "\\xzz"\n---')
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Any bytes are a skill with one line in the instructions, or are left out."""
    folder = write_skill(tmp_path_factory.mktemp("skills") / "tax-form", data)
    with suppress(ConfigurationError):
        read = skills(folder)
        (skill,) = read.by_name.values()
        assert read.instructions.splitlines()[1:] == [f"- {skill.name}: {skill.description}"]
