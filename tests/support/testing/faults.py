"""Faults that are planted into a copy of aswarm, one at a time: the programs of the simulation must find each.

`python faults.py [UNIVERSES] [NAME ...]` plants them, and prints the first universe that finds each. A fault whose text is not in
the source any more is an error: change its line in the table.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
UNIVERSES = 300
_MOST_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of the source. `file`: below `aswarm`. `programs`: those that must find it, each within `UNIVERSES`."""

    name: str
    file: str
    old: str
    new: str
    programs: tuple[str, ...]


def fault(name: str, file: str, old: str, new: str, *programs: str) -> Fault:
    return Fault(name, file, old, new, programs)


FAULTS = (
    # --- runs that are kept ---
    fault(
        "the attempt is not checked on an append",
        "_record/log.py",
        "WHERE id = ? AND attempt = ? AND status = 'running' FOR SHARE",
        "WHERE id = ? AND ? > 0 AND status = 'running' FOR SHARE",
        "lost_locks",
    ),
    fault(
        "the attempt is not checked at the end",
        "_record/log.py",
        "{set_end} WHERE id = ? AND attempt = ? AND {ACTIVE}",
        "{set_end} WHERE id = ? AND ? > 0 AND {ACTIVE}",
        "lost_locks",
    ),
    fault(
        "an ended run takes entries",
        "_record/log.py",
        "WHERE id = ? AND attempt = ? AND status = 'running' FOR SHARE",
        "WHERE id = ? AND ? > 0 FOR SHARE",
        "lost_locks",
    ),
    fault(
        "the written context is not replayed",
        "_record/outcomes.py",
        'change(each, copy_containers(recorded.get("written", {})), recorded.get("removed", ()))',
        'change(each, {}, recorded.get("removed", ()))',
        "crashed_contexts",
        "crashed_types",
    ),
    fault(
        "the changes of a Result are not replayed",
        "_record/outcomes.py",
        'context_variables=outcome.get("context", {}))',
        "context_variables={})",
        "crashed_contexts",
    ),
    fault(
        "a replayed completion has no usage",
        "_record/outcomes.py",
        'return {"choices": [choice], "usage": counts}',
        'return {"choices": [choice], "usage": {}}',
        "crashed_contexts",
    ),
    fault(
        "the start of a call is not committed",
        "_record/recorder.py",
        "await self._sink.commit()  # the function may run only if this succeeds",
        "pass",
        "crashed_contexts",
        "lost_locks",
    ),
    fault(
        "a call that a crash has cut runs again",
        "_record/recorder.py",
        "elif key in self._facts.started and not call.is_repeatable:",
        "elif False:",
        "crashed_contexts",
    ),
    fault(
        "the notifier does not wake the readers",
        "runs/_live.py",
        "            self._news.set()\n",
        "",
        "crashed_contexts",
    ),
    fault(
        "the revision of a conversation is not checked",
        "conversations/_statements.py",
        "if revision is None or revision != change.base:",
        "if False:",
        "shared_conversations",
    ),
    fault(
        "code after a crash repeats the effects of its calls",
        "_record/facts.py",
        "            self._end(self.finished, key, fields)\n",
        "            self.started.discard(key)\n",
        "crashed_code",
    ),
    # --- calls that wait ---
    fault(
        "a started call is resumable",
        "_run/call.py",
        "if call.outcome or key in answered or (call.has_started and not call.is_repeatable):",
        "if call.outcome or key in answered:",
        "middlewares",
        "exits",
    ),
    fault(
        "an undecided call runs",
        "_run/resuming.py",
        'call._hold = kind(question.get("reason", UNDECIDED), data=question.get("data"))',
        "call._decided = dataclasses.replace(earlier[call.index], is_approval=True)",
        "agent_tools",
    ),
    fault(
        "a denied call runs",
        "_run/resuming.py",
        'call._outcome = ToolOutcome(f"{text}: {reason}" if reason else text, unknown=has_started)',
        "call._decided = dataclasses.replace(earlier, is_approval=True)",
        "middlewares",
        "code_mode",
    ),
    fault(
        "a call with approve= is not asked",
        "_run/execution.py",
        "if (tool.approve is not False or tool.is_external) and not call.is_approval:",
        "if tool.is_external and not call.is_approval:",
        "middlewares",
        "code_mode",
        "agent_tools",
    ),
    # --- the turn ---
    fault(
        "the first change of the context wins",
        "_run/call.py",
        "changes.update(outcome.result.context_variables)",
        "changes = {**outcome.result.context_variables, **changes}",
        "eager_tools",
    ),
    fault(
        "the first handoff wins",
        "_run/call.py",
        "if (outcome := call.outcome) and (agent := outcome.agent):\n                target = agent",
        "if (outcome := call.outcome) and (agent := outcome.agent):\n                target = target or agent",
        "handoffs",
    ),
    fault(
        "the agent is switched before the changes are merged",
        "_run/state.py",
        "self.context.update(self.turn.calls.changes())\n",
        "if self.turn.calls.handed_to() is None:\n            self.context.update(self.turn.calls.changes())\n",
        "handoffs",
    ),
    fault(
        "the changes of a finished call are lost by a cancellation",
        "_run/state.py",
        "variables.update(turn.calls.changes())",
        "pass",
        "middlewares",
    ),
    fault(
        "unknown_calls stays empty",
        "_run/state.py",
        "unknown_calls += turn.calls.unknown()",
        "pass",
        "middlewares",
    ),
    fault(
        "two functions that write the context run together",
        "_tools/tool.py",
        "return tool.is_async and not writes_context(tool)",
        "return tool.is_async",
        "typed_context",
    ),
    # --- eager tools ---
    fault(
        "an eager call is kept after its arguments have changed",
        "_run/eager.py",
        "(call.id, call.name, call.arguments) == (own.id, own.name, self._arguments)",
        "(call.id, call.name) == (own.id, own.name)",
        "eager_tools",
    ),
    fault(
        "eager calls are not stopped at the end of the run",
        "_run/eager.py",
        "        while self._eager:\n",
        "        while False:\n",
        "eager_tools",
    ),
    # --- the provider ---
    fault(
        "the loser of a hedge is never closed",
        "middleware/_hedge.py",
        "        await self._chunks.aclose()\n",
        "        pass\n",
        "hedged",
    ),
    fault(
        "the loser of a hedge is not counted",
        "middleware/_hedge.py",
        "        race.charge(handlers.run)\n",
        "",
        "hedged",
    ),
    fault(
        "a stream that is left stays open",
        "_run/loop.py",
        "            await chunks.aclose()\n",
        "            self.state.__dict__.setdefault('left', []).append(chunks)\n",
        "exits",
        "middlewares",
    ),
    fault(
        "a completion is counted twice",
        "_run/state.py",
        "spending.usage += completion.usage\n",
        "spending.usage += completion.usage + completion.usage\n",
        "middlewares",
        "exits",
    ),
    fault(
        "the completions of inner runs are not counted",
        "_run/state.py",
        "            spending.outer.add(completion.usage)\n",
        "            pass\n",
        "agent_tools",
    ),
    # --- limits and types ---
    fault(
        "one turn more than the budget",
        "_run/spending.py",
        "if is_reached(self.turns, budget.turns):",
        "if is_reached(self.turns - 1, budget.turns):",
        "budgets",
    ),
    fault(
        "one call more than the budget",
        "_run/budget_control.py",
        "is_reached(each.calls, each.budget.tool_calls)",
        "is_reached(each.calls - 1, each.budget.tool_calls)",
        "budgets",
    ),
    fault(
        "the tokens of a budget are not compared",
        "_run/spending.py",
        "if is_reached(used, budget.tokens):",
        "if False:",
        "budgets",
    ),
    fault(
        "a typed answer is not validated",
        "_run/typed_answers.py",
        "            if self.is_last:\n                return True\n",
        "            return True\n",
        "structured_output",
    ),
    fault(
        "the check of a typed answer is not called",
        "_run/typed_answers.py",
        "            output.check(value)\n",
        "            pass\n",
        "structured_output",
    ),
    fault(
        "a token of a limiter is never released",
        "_run/execution.py",
        "        limiter.release_on_behalf_of(borrower)\n",
        "        pass\n",
        "middlewares",
    ),
    fault(
        "the slot of a plain function is never released",
        "_run/execution.py",
        "            slot.release()\n",
        "            pass\n",
        "middlewares",
    ),
    fault(
        "two variables that change in the same way are one change",
        "_values/context.py",
        "    compared: set[tuple[int, int]] = set()\n",
        "    compared = equal\n",
        "crashed_middleware",
    ),
)


def planted(each: Fault, folder: Path, only: str = "") -> Path:
    """Copy the source, and plant the fault. Raises LookupError if its text is not there exactly once. `only`: one file."""
    target = folder / "src"
    file = target / "aswarm" / each.file
    if only:
        file.parent.mkdir(parents=True)
        shutil.copy(SOURCE / "aswarm" / only, file)
    else:
        shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    text = file.read_text()
    if (number := text.count(each.old)) != 1:
        raise LookupError(
            f"{each.name}: {each.file} has the text {number} times; change its line in {Path(__file__).name}"
        )
    file.write_text(text.replace(each.old, each.new))
    return target


def search(each: Fault, universes: int) -> list[str]:
    """Plant a fault and run its programs. Returns a line for each program; a line for a miss starts with "MISSED"."""
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = planted(each, folder)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.fspath(path), os.fspath(ROOT)])}
        for program in each.programs:
            where = folder / "universe"
            command = [
                sys.executable,
                "-m",
                "tests.support.testing.universes",
                "--find",
                str(universes),
                "--where",
                os.fspath(where),
            ]
            try:
                done = subprocess.run(
                    [*command, program],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=_MOST_SECONDS,
                    check=False,
                )
                found = re.search(r"^FOUND (\d+) (.*)", done.stdout, re.MULTILINE)
                error = "" if found or "NOT FOUND" in done.stdout else done.stderr[-500:]
                text = f"seed {found[1]}: {found[2]}" if found else error
            except subprocess.TimeoutExpired:
                text = f"the universe {where.read_text()} did not end"
            lines.append(f"{'      ' if text and (not error) else 'MISSED'} {each.name}: {program}: {text[:160]}")
    return lines


def main(universes: int, names: list[str], processes: int) -> int:
    """Plant the faults. Returns the number of misses."""
    chosen = [each for each in FAULTS if not names or any(name in each.name or name in each.programs for name in names)]
    misses = 0
    with ThreadPoolExecutor(processes) as threads:
        for done in as_completed([threads.submit(search, each, universes) for each in chosen]):
            lines = done.result()
            print("\n".join(lines), flush=True)
            misses += sum(line.startswith("MISSED") for line in lines)
    print(f"{len(chosen)} faults, {misses} misses in {universes} universes of a program")
    return misses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("universes", type=int, nargs="?", default=UNIVERSES)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    sys.exit(min(1, main(given.universes, given.names, given.processes)))
