"""The museum's desk: its transcript, and who can hand over to whom."""

from __future__ import annotations

import pytest

from aswarm._tools.toolbox import tools_of
from tests.examples.loading import load
from tests.examples.transcripts import Transcript, check_transcript, transcripts

agents = load("multilingual", "agents")


@pytest.mark.parametrize("transcript", transcripts("multilingual"), ids=str)
def test_the_transcript_is_what_the_command_prints(transcript: Transcript) -> None:
    """Word for word, from an empty folder, in all three languages."""
    check_transcript(transcript)


def test_every_agent_can_hand_over_to_the_two_others() -> None:
    """Visitors may change the language at any time."""
    names = {f"transfer_to_{language}_agent" for language in ("english", "spanish", "chinese")}
    for agent in (agents.english_agent, agents.spanish_agent, agents.chinese_agent):
        assert set(tools_of(agent)) == names - {f"transfer_to_{agent.name.lower().replace(' ', '_')}"}
