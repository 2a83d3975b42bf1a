"""Help articles that are found by what they mean: an embedding model and a vector index, both in this process.

It decides how articles are read, embedded and found. It knows nothing of agents, and never uses the network: the model
is a file inside the package `wordllama`, the index is Qdrant's local mode. For articles by the thousand, point
`AsyncQdrantClient` at a server; nothing else changes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from qdrant_client import AsyncQdrantClient, models

logging.basicConfig()  # unless the program has done it: importing wordllama would, for everything that is INFO
import wordllama  # noqa: E402

ARTICLES = Path(__file__).with_name("articles")
COLLECTION = "articles"


@dataclass(frozen=True, slots=True)
class Article:
    """A help article; `name` is that of its file, `text` is Markdown and begins with the title."""

    name: str
    text: str

    @property
    def title(self) -> str:
        """The first line, without its mark."""
        return self.text.splitlines()[0].removeprefix("# ")


class HelpCentre:
    """Finds articles. `async with` it: entering builds the index, leaving gives its memory back."""

    def __init__(self, folder: Path = ARTICLES) -> None:
        """`folder` holds the articles, one Markdown file each."""
        self.articles = [Article(path.stem, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.md"))]
        # As it is released, wordllama looks for its own tokenizer in a folder that has another name, and then on the
        # internet. As a cache, the package's folder is searched under the right name.
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
        """The `limit` articles nearest in meaning to the question, nearest first."""
        [vector] = self._embed([question])
        found = await self._index.query_points(COLLECTION, query=vector, limit=limit)
        return [self.articles[int(point.id)] for point in found.points]

    def _embed(self, texts: list[str]) -> list[list[float]]:
        # About 20 microseconds for a question: nothing that an event loop would have to be spared.
        vectors: list[list[float]] = self._model.embed(texts, norm=True).tolist()
        return vectors
