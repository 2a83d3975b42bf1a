"""The messages of the customer in each step."""

ROUTINE = [
    "My kettle leaks.",
    "At the bottom, around the screw.",
    "It still drips.",
]
FUNCTIONS = [*ROUTINE, "Yes, please."]
HANDOFF = [
    "I need a lamp for the garden.",
    "Wait, before I buy again: my kettle leaks, and tightening its screw did not help.",
]
SEVERAL_AGENTS = [
    "Hello!",
    "I would like a lamp to read in bed.",
    "Yes, I take it.",
    "My kettle leaks at the bottom, though the screw is tight. Can I have my money back?",
    "I also want to complain about the delivery. Let me talk to a person.",
]
