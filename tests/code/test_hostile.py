"""Hostile code: it gets a text, and harms nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from aswarm import ConfigurationError, tool
from aswarm.code import CodeLimits
from tests.support.code.coded import agent_of, result_in, result_of, resumed, run_code, swarm_of

SMALL = CodeLimits(seconds=0.5, memory_bytes=16 * 1024 * 1024, calls=20, output_characters=500, recursion=100)

ESCAPES = [
    'import os\nos.system("touch {marker}")',
    'import os\nos.environ["ASWARM_SECRET"]',
    'import os\nos.getenv("ASWARM_SECRET")',
    'import os\nos.listdir("/")',
    'import os\nos.remove("{marker}")',
    "import os\nos.fork()",
    "import os\nos.kill(os.getppid(), 9)",
    "import os\nos._exit(1)",
    'import os\nos.execv("/bin/sh", ["sh"])',
    'import subprocess\nsubprocess.run(["touch", "{marker}"])',
    'import socket\nsocket.create_connection(("127.0.0.1", 80))',
    'import urllib.request\nurllib.request.urlopen("http://127.0.0.1")',
    "import ctypes",
    "import sys\nsys.exit(3)",
    "import sys\nsys._getframe()",
    "import sys\nsys.modules",
    "import gc\ngc.get_objects()",
    "import inspect\ninspect.stack()",
    "import builtins\nbuiltins.open",
    "import threading\nthreading.Thread(target=print).start()",
    "import multiprocessing",
    "import signal",
    "import importlib\nimportlib.import_module('os')",
    "import pickle\npickle.loads(b'cos\\nsystem\\n')",
    "import aswarm",
    "import pydantic_monty",
    'open("/etc/passwd").read()',
    'open("{marker}", "w").write("x")',
    'from pathlib import Path\nPath("/etc/passwd").read_text()',
    'from pathlib import Path\nPath("{marker}").write_text("x")',
    'from pathlib import Path\nlist(Path("/").iterdir())',
    '__import__("os").system("touch {marker}")',
    "eval(\"__import__('os').system('touch {marker}')\")",
    'exec("import os; os.environ")',
    "().__class__.__bases__[0].__subclasses__()",
    "(lambda: 0).__globals__",
    "(lambda: 0).__code__",
    "look.__globals__",
    "look.__wrapped__",
    "type('X', (), {{}})",
    "getattr(1, '__class__').__mro__",
    '"{{0.__class__}}".format(1)',
    "globals()",
    "vars()",
    "breakpoint()",
    "input()",
    "exit()",
    "raise SystemExit(1)",
    "raise KeyboardInterrupt",
    "raise BaseException('x')",
]
EXHAUSTION = [
    "while True:\n    pass",
    "x = 0\nwhile True:\n    x += 1",
    "[0] * 10**10",
    '"a" * 10**10',
    "x = 'a'\nwhile True:\n    x += x",
    "x = []\nwhile True:\n    x.append(x * 2)",
    "x = {{}}\nn = 0\nwhile True:\n    x[n] = 'a' * 1000\n    n += 1",
    "10 ** 10 ** 10",
    "1 << 10 ** 10",
    "list(range(10**12))",
    "sum(range(10**12))",
    "def f(n):\n    return f(n + 1)\nf(0)",
    "def f():\n    try:\n        f()\n    finally:\n        f()\nf()",
    "x = []\nfor _ in range(100000):\n    x = [x]\nx",
    "x = []\nx.append(x)\nx == x",
    "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    "import json\njson.loads('[' * 100000)",
    "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
    "import time\ntime.sleep(100000)\n1",
    "await asyncio.sleep(100000)\n1",
    "print('a' * 10**6)",
    "while True:\n    print('a' * 1000)",
    "'a' * 10**6",
    "[['a' * 100] * 100] * 100",
    "eval('(' * 10000 + ')' * 10000)",
    "eval('1' + '+1' * 100000)",
    "import os\nwhile True:\n    try:\n        os.environ\n    except Exception:\n        pass",
    "while True:\n    try:\n        unknown_name\n    except NameError:\n        pass",
]
CALLS = [
    "while True:\n    await look(1)",
    "while True:\n    try:\n        await look(1)\n    except BaseException:\n        pass",
    "await asyncio.gather(*[look(n) for n in range(10000)])",
    "await look('a' * 10**6 * 2)",
    "await look([[0] * 1000] * 100)",
    "await look(look)",
    "await look(lambda: 0)",
    "x = []\nx.append(x)\nawait look(x)",
    "x = []\nfor _ in range(5000):\n    x = [x]\nawait look(x)",
    "await look(float('nan'))",
    "await look(1, 2, 3)",
    "await look(number=1, other=2)",
    "await _call('look', {{'number': 1, 'context_variables': {{}}}})",
    "await _call('unknown', {{}})",
    "await _call('look', 5)",
    "await _call()",
    "await _call('look', {{5: 5}})",
    "_call('look', {{'number': 1}})",
    "async def _call(*args):\n    return 99\nawait look(1)",
    "look = 5\nlook",
    "c = look(1)\nawait c\nawait c",
    "async def later():\n    await look(1)\nlater()\n1",
    "await asyncio.gather(look(1), fails())\nawait look(2)",
    "def f():\n    yield look(1)\nf()",
    "del look\nawait look(1)",
    "asyncio = None\nawait asyncio.gather(look(1))",
    "return 5",
    "await",
    "x = = 1",
    "\x00",
    "é" * 1000 + "(",
    "",
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # a step runs in a thread on both


async def look(number: int) -> int:
    """Look something up."""
    return number


async def fails() -> int:
    """Fail."""
    raise ValueError("failed")


@pytest.mark.slow
@pytest.mark.parametrize("corpus", [ESCAPES, EXHAUSTION, CALLS], ids=["escapes", "exhaustion", "calls"])
@pytest.mark.parametrize("type_check", [True, False])
async def test_hostile_code_gets_a_text_and_harms_nothing(
    corpus: list[str], type_check: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time and size are bounded, no secret comes out, no file is made, and the next code runs."""
    marker = tmp_path / "marker"
    monkeypatch.setenv("ASWARM_SECRET", "s3cr3t")
    texts: dict[str, str] = {}

    async def one(code: str) -> None:
        texts[code] = await result_of(code.format(marker=marker), look, fails, limits=SMALL, type_check=type_check)

    started = time.monotonic()
    async with anyio.create_task_group() as group:
        for code in corpus:
            group.start_soon(one, code)
    assert time.monotonic() - started < 240
    assert len(texts) == len(set(corpus))
    for code, text in texts.items():
        assert text, code
        assert len(text) < 800, code
        assert "s3cr3t" not in text, code
        assert "root:" not in text, code
    assert not marker.exists()
    assert await result_of("await look(7)", look) == "7"


async def limited(code: str, *functions: Callable[..., Any], **limits: Any) -> str:
    return result_in(await run_code(code, look, *functions, limits=CodeLimits(**limits)))


async def test_each_limit_ends_the_code_with_its_reason() -> None:
    assert "time limit exceeded" in await limited("while True:\n    pass", seconds=0.2)
    assert "MemoryError: memory limit exceeded" in await limited("'a' * 10**8", memory_bytes=1024 * 1024)
    assert "RecursionError" in await limited("def f(n):\n    return f(n)\nf(1)", recursion=20)
    text = await limited("for n in range(9):\n    await look(n)", calls=3)
    assert text == "the code was stopped, because it made more than 3 calls\n[calls that ran before: look (3)]"
    assert await limited("'a' * 100", output_characters=10) == "aaaaaaaaaa\n[cut off: 10 of 100 characters]"
    assert "x = 1" not in await limited("print('x' * 10**6)", output_characters=10)


async def test_the_limit_of_seconds_counts_all_steps() -> None:
    """Each step is below the limit, and the time of the calls does not count."""

    async def slow() -> None:
        await anyio.sleep(0.6)

    code = "for _ in range(100):\n    x = 0\n    for n in range(300000):\n        x += n\n    await look(1)"
    text = await limited(code, seconds=0.5)  # the worker also counts, over its own pauses
    assert "the code was stopped after 0.5 seconds" in text or "time limit exceeded" in text
    assert await limited("await slow()\nawait slow()\n1", slow, seconds=0.5) == "1"


@pytest.mark.parametrize(
    "limits", [{"seconds": 0}, {"calls": 1.5}, {"memory_bytes": -1}, {"output_characters": None}, {"seconds": True}]
)
def test_a_limit_is_a_positive_number(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="must be a positive number"):
        CodeLimits(**limits)


async def test_a_replay_starts_the_limits_again() -> None:
    """A replay executes the code from its start, so only one execution counts."""
    pay = tool(approve=True)(look)
    code = "for n in range(3):\n    await look(n)\n1"
    agent = agent_of(pay, limits=CodeLimits(calls=3))
    response = await swarm_of(code).run(agent, "Go")
    history: list[Any] = []
    for _ in range(3):
        before, history = history, [*history, *response.messages]
        response = await resumed(agent, response, True, *before)
    assert result_in(response) == "1"


async def test_short_steps_count_together() -> None:
    """The limit of seconds counts all steps, without the time of the calls."""
    text = await result_of("while True:\n    await look(1)", look, limits=CodeLimits(seconds=0.2, calls=10**6))
    assert "the code was stopped after 0.2 seconds" in text
