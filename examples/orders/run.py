"""Starts two processes of the service, kills the first one with SIGKILL during a refund, and goes on with the second one."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import httpx


def started(folder: str) -> tuple[subprocess.Popen[str], httpx.Client]:
    """Start a process of the service. Returns it with a client."""
    files = {"ORDERS_FILE": f"{folder}/orders.sqlite", "PAYMENTS_FILE": f"{folder}/payments.sqlite"}
    command = [sys.executable, str(Path(__file__).with_name("app.py"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **files})
    url = process.stdout.readline().strip() if process.stdout else ""
    return process, httpx.Client(base_url=url, timeout=60, trust_env=False)


def rows(folder: str, table: str) -> list[tuple[object, ...]]:
    """Return the rows of the payment service."""
    if not Path(folder, "payments.sqlite").exists():
        return []
    with closing(sqlite3.connect(f"{folder}/payments.sqlite")) as file:
        tables = file.execute("SELECT name FROM sqlite_master").fetchall()
        return file.execute(f"SELECT * FROM {table}").fetchall() if (table,) in tables else []  # noqa: S608 - our names


def main() -> None:
    """Refund order 7 across the kill, and order 8 after it."""
    with tempfile.TemporaryDirectory() as folder:
        (first, one), (second, two) = started(folder), started(folder)
        try:
            for order, amount in ((7, 120), (8, 90)):
                one.post(f"/orders/{order}", json={"text": f"Refund order {order}: {amount} euros."}).raise_for_status()
                print("order", order, "waits:", two.get(f"/orders/{order}").json()["waiting"])
            one.post("/orders/7/approve").raise_for_status()
            while not rows(folder, "payments"):
                time.sleep(0.01)
            first.kill()
            print("killed during the refund, exit code", first.wait())
            print(two.get("/orders/7").json()["text"])
            two.post("/orders/8/approve").raise_for_status()
            print(two.get("/orders/8").json()["text"])
            payments = sorted((str(purpose), amount) for _, purpose, amount in rows(folder, "payments"))
            print(len(rows(folder, "requests")), "requests,", len(payments), "payments:", payments)
        finally:
            first.kill()
            second.terminate()
            first.wait()
            second.wait()
            one.close()
            two.close()


if __name__ == "__main__":
    main()
