"""Index of functions for a search by words, with BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from aswarm._values.json import is_object

_WEIGHT_OF_NAME = 3
_K1, _B = 1.2, 0.75  # the usual constants of BM25
_WORD, _HUMP = re.compile(r"[^\W_]+"), re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SHORT = 3  # the length of words that keep their ending


class SearchIndex:
    """The words of functions: of their names, their descriptions, and their parameters."""

    def __init__(self, functions: Sequence[Mapping[str, Any]]) -> None:
        self._documents = [Counter(_words_of(function)) for function in functions]
        self._average = sum(document.total() for document in self._documents) / max(1, len(functions))

    def best(self, query: str, most: int) -> list[int]:
        """Return the positions of the functions with a word of the query, at most this number; the best first."""
        scores = self._scores(query)
        return sorted(scores, key=lambda at: (-scores[at], at))[:most]

    def _scores(self, query: str) -> dict[int, float]:
        scores: dict[int, float] = {}
        for word in dict.fromkeys(_words(query)):
            having = [(at, document[word]) for at, document in enumerate(self._documents) if word in document]
            rarity = math.log(1 + (len(self._documents) - len(having) + 0.5) / (len(having) + 0.5))
            for at, count in having:
                length = 1 - _B + _B * self._documents[at].total() / self._average
                scores[at] = scores.get(at, 0.0) + rarity * count * (_K1 + 1) / (count + _K1 * length)
        return scores


def _words_of(function: Mapping[str, Any]) -> Iterator[str]:
    yield from [*_words(function["name"])] * _WEIGHT_OF_NAME
    yield from _words(function["description"])
    properties = function["parameters"].get("properties")
    for name, schema in properties.items() if is_object(properties) else ():
        yield from _words(name)
        yield from _words(str(schema.get("description") or "")) if is_object(schema) else ()


def _words(text: str) -> Iterator[str]:
    """Yield the words in lower case, English words without the ending of the plural, and `createIssue` as two words."""
    for word in _WORD.findall(_HUMP.sub(" ", text).lower()):
        if not word.isascii():  # some languages have no spaces between words: pairs of characters
            yield from map("".join, pairwise(word)) if len(word) > 1 else (word,)
        elif len(word) <= _SHORT or not word.endswith("s") or word.endswith("ss"):
            yield word
        else:
            yield f"{word[:-3]}y" if word.endswith("ies") else word[:-1]
