"""Fields of log records."""

from __future__ import annotations

from collections.abc import Mapping

# The fields of a log record outside of a run. Without them, a log format with `%(run_id)s` would fail for such a record.
NO_RUN: Mapping[str, None] = {"run_id": None, "agent": None}
