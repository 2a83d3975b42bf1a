"""`aswarm batch`: reads conversations from a file or a pipe, and writes one outcome on each line.

`AsyncSwarm.batch` runs the agents. This folder reads the input, writes the output, skips finished items for `--resume`, and
reports on stderr.

Lines are only appended to an output file. `--resume` runs failed items again, so a file can have several lines for one id:
**the last line of an id counts**. A crash may have cut off a line: skip each line that is not JSON. In Python:

    outcomes = {}
    with open("out.jsonl", encoding="utf-8") as file:
        for line in file:
            with suppress(json.JSONDecodeError):
                outcome = json.loads(line)
                outcomes[outcome["id"]] = outcome

And with jq: `jq -nR '[inputs | fromjson?] | INDEX(.id)' out.jsonl`.
"""
