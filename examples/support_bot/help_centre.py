"""Semantic search in help articles, with an embedding model and a vector index in this process.

The search needs no network: the model is a file inside of the package `wordllama`, and the index uses Qdrant's local mode. For
thousands of articles, connect `AsyncQdrantClient` to a server; the other code stays the same.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from qdrant_client import AsyncQdrantClient, models

logging.basicConfig()  # before wordllama, whose import would set the level INFO for everything
import wordllama  # noqa: E402

ARTICLES = Path(__file__).with_name("articles")
COLLECTION = "articles"


@dataclass(frozen=True, slots=True)
class Article:
    """A help article. `name`: the name of its file. `text`: Markdown that starts with the title."""

    name: str
    text: str

    @property
    def title(self) -> str:
        """The first line of the text, without the `#`."""
        return self.text.splitlines()[0].removeprefix("# ")


class HelpCentre:
    """The index of the articles. `async with` builds it, and frees its memory at the end."""

    def __init__(self, folder: Path = ARTICLES) -> None:
        """`folder` contains the articles, one Markdown file each."""
        self.articles = [Article(path.stem, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.md"))]
        # The released wordllama looks for its tokenizer in a folder with a wrong name, and then on the internet. As a
        # cache, the package's folder is searched with the right name.
        package = Path(wordllama.__file__).parent
        self._model = wordllama.WordLlama.load(cache_dir=package, disable_download=True)
        self._index = AsyncQdrantClient(":memory:")

    async def __aenter__(self) -> Self:
        vectors = self._embed([article.text for article in self.articles])
        size = models.VectorParams(size=len(vectors[0]), distance=models.Distance.COSINE)
        await self._index.create_collection(COLLECTION, vectors_config=size)
        points = [models.PointStruct(id=number, vector=vector) for number, vector in enumerate(vectors)]
        await self._index.upsert(COLLECTION, points)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._index.close()

    async def search(self, question: str, limit: int = 3) -> list[Article]:
        """Return the `limit` articles that are nearest in meaning to the question, the nearest first."""
        [vector] = self._embed([question])
        result = await self._index.query_points(COLLECTION, query=vector, limit=limit)
        return [self.articles[int(point.id)] for point in result.points]

    def _embed(self, texts: list[str]) -> list[list[float]]:
        # About 20 microseconds for a question: no thread needed.
        vectors: list[list[float]] = self._model.embed(texts, norm=True).tolist()
        return vectors
