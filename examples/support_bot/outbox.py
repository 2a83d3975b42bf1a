"""The outbox for tickets and emails: files in a folder, for a person to process. Nothing is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from email.message import EmailMessage
from itertools import count
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Outbox:
    """A folder that exists. Any number of conversations, threads and processes may write to it at once."""

    folder: Path

    def put_ticket(self, customer: str, summary: str, details: str) -> str:
        """File a ticket, and return its name."""
        ticket = {"customer": customer, "summary": summary, "details": details}
        return self._write("ticket", ".json", json.dumps(ticket, ensure_ascii=False, indent=2).encode() + b"\n")

    def put_email(self, address: str, subject: str, text: str) -> str:
        """Queue an email, and return its name. Raises ValueError if the subject would add another header."""
        letter = EmailMessage()
        letter["From"] = "help@fernsprout.example"
        letter["To"] = address
        letter["Subject"] = subject
        letter.set_content(text, cte="8bit")
        return self._write("email", ".eml", letter.as_bytes())

    def _write(self, kind: str, suffix: str, content: bytes) -> str:
        for number in count(1):
            name = f"{kind}-{number}"
            try:
                with (self.folder / (name + suffix)).open("xb") as file:
                    file.write(content)
            except FileExistsError:  # another conversation has used it, perhaps at this moment
                continue
            return name
        raise AssertionError("there is always another number")
