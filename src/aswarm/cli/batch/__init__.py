"""`aswarm batch`: reads conversations from a file or a pipe, and writes one outcome on each line.

Decides what a line of input means, what a line of output holds, which items `--resume` skips, and what the user is told.
Never runs an agent itself: `AsyncSwarm.batch` does.

An output file is only ever appended to. A file can hold several lines for one id, because `--resume` runs failed items
again: **the last line of an id counts**. A line that is not JSON was cut off by a crash, and counts as absent. In Python:

    outcomes = {}
    with open("out.jsonl", encoding="utf-8") as file:
        for line in file:
            with suppress(json.JSONDecodeError):
                outcome = json.loads(line)
                outcomes[outcome["id"]] = outcome

And with jq: `jq -nR '[inputs | fromjson?] | INDEX(.id)' out.jsonl`.
"""
