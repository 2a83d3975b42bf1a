"""The public names of `aswarm.evals`, and the cost of importing it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import aswarm.evals

ALIASES = {"Extent"}


@pytest.mark.parametrize("name", sorted(set(aswarm.evals.__all__) - ALIASES))
def test_every_public_name_says_what_it_is(name: str) -> None:
    """A docstring of its own, on the name and on its public members."""
    value = getattr(aswarm.evals, name)
    assert (value.__doc__ or "").strip()
    assert not value.__doc__.startswith(f"{name}("), "the docstring that dataclass makes"
    for key, member in vars(value).items():
        if not key.startswith("_") and (isinstance(member, property) or callable(member)):
            assert member.__doc__, f"{name}.{key}"


@pytest.mark.processes
def test_importing_it_needs_no_extra_and_no_client() -> None:
    """It imports neither yaml nor rich, nor what `import aswarm` leaves out; and `import aswarm` does not import it."""
    heavy = ["openai", "httpx", "httpx2", "trio", "yaml", "rich"]
    code = (
        "import sys, aswarm; print('aswarm.evals' in sys.modules); "
        f"import aswarm.evals; print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    assert done.stdout == "False\n[]\n", done.stderr
