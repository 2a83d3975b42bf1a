"""The cases that CI runs of a test with many combinations. The other cases are `heavy`: `nox -s deep -- thorough` runs them.

The place of a case in its parametrization decides, or a list beside the test. The name of the test has no influence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest


def every(step: int, *dimensions: Iterable[Any], first: int = 0) -> list[Any]:
    """Return all combinations of the dimensions; CI runs one of `step`. A tuple in a dimension gives several arguments.

    The sample moves by one place with each value of the first dimension, so it has each value of that dimension if the
    others have at least `step` combinations. Tests with the same combinations share them out with different values of `first`.
    """
    leading, *others = (list(dimension) for dimension in dimensions)
    return [
        case(*_flat((value, *rest)), is_sampled=(row + column) % step == first)
        for row, value in enumerate(leading)
        for column, rest in enumerate(product(*others))
    ]


def listed(values: Iterable[Any], sample: Collection[Any]) -> list[Any]:
    """Return all values; CI runs the values in `sample`. Raise if the test has no such value."""
    known = list(values)
    if unknown := [value for value in sample if value not in known]:
        raise ValueError(f"the sample has {unknown}, but the test has only {known}")
    return [case(value, is_sampled=value in sample) for value in known]


def case(*values: Any, is_sampled: bool) -> Any:
    """Return the arguments of a test, which are heavy unless they are in the sample."""
    return pytest.param(*values, marks=() if is_sampled else pytest.mark.heavy)


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        yield from value if isinstance(value, tuple) else (value,)
