"""Skills: folders of instructions, which a model loads when a task needs them (agentskills.io).

    support = skills("skills").add_to(Agent(instructions="You help customers.", functions=[refund]))

A skill is a folder with a file `SKILL.md`: a name, a description, and instructions. The agent gets the names and descriptions in
its instructions, and two functions: `load_skill` returns the instructions of a skill, `read_skill_file` returns its other files.

A folder of skills is trusted like the code of the program: its texts are instructions for the model. It needs the package `pyyaml`,
which the extra `skills` installs.
"""

from aswarm._values import public_names as _public
from aswarm._values.errors import ConfigurationError
from aswarm._values.text import how_to_install

try:
    import yaml as _  # noqa: F401
except ImportError as error:
    raise ConfigurationError(f"aswarm.skills needs the package pyyaml: {how_to_install('skills')} ({error})") from error

from ._skills import Skill, Skills, skills

__all__ = ["Skill", "Skills", "skills"]

_public.publish(globals())
