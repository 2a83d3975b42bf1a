"""Calls that wait for a person, and the decisions on them."""

from ._tools.tool import Approval
from ._values.decisions import AllApproved, Approve, Decision, Decisions, Deny, OpenCall, Reply, open_calls
from ._values.errors import Hold

__all__ = [
    "AllApproved",
    "Approval",
    "Approve",
    "Decision",
    "Decisions",
    "Deny",
    "Hold",
    "OpenCall",
    "Reply",
    "open_calls",
]
