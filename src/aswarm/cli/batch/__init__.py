"""`aswarm batch`: reads conversations from a file or a pipe, and writes one outcome on each line.

Decides what a line of input means, what a line of output has, which items `--resume` skips, and what is printed on stderr.
Never runs an agent itself: `AsyncSwarm.batch` does.

Lines are only appended to an output file. A file can have several lines for one id, because `--resume` runs failed items
again: **the last line of an id counts**. A line that is not JSON was cut off by a crash, and counts as absent. In Python:

    outcomes = {}
    with open("out.jsonl", encoding="utf-8") as file:
        for line in file:
            with suppress(json.JSONDecodeError):
                outcome = json.loads(line)
                outcomes[outcome["id"]] = outcome

And with jq: `jq -nR '[inputs | fromjson?] | INDEX(.id)' out.jsonl`.
"""
