"""Faults that aswarm once had, or could have: a program of the simulation or a test must find each.

`planting` plants them into a copy of the source, one at a time. A fault whose text is not in the source any more, or whose test
does not exist any more, is an error: change its entry here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of the source.

    `file`: below `aswarm`. `programs`: each must find the fault within `planting.UNIVERSES`. `tests`: the ids of pytest of tests
    that must fail with the fault.
    """

    name: str
    file: str
    old: str
    new: str
    programs: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


def fault(name: str, file: str, old: str, new: str, *programs: str, tests: tuple[str, ...] = ()) -> Fault:
    return Fault(name, file, old, new, programs, tests)


FAULTS = (
    # --- runs that are kept ---
    fault(
        "the attempt is not checked on an append",
        "_log/runs.py",
        "WHERE id = ? AND attempt = ? AND status = 'running' FOR SHARE",
        "WHERE id = ? AND ? > 0 AND status = 'running' FOR SHARE",
        "lost_locks",
        tests=("tests/record/test_log.py::test_only_the_last_attempt_writes",),
    ),
    fault(
        "the attempt is not checked at the end",
        "_log/runs.py",
        "{set_end} WHERE id = ? AND attempt = ? AND {ACTIVE}",
        "{set_end} WHERE id = ? AND ? > 0 AND {ACTIVE}",
        "lost_locks",
    ),
    fault(
        "an ended run takes entries",
        "_log/runs.py",
        "WHERE id = ? AND attempt = ? AND status = 'running' FOR SHARE",
        "WHERE id = ? AND ? > 0 FOR SHARE",
        "lost_locks",
    ),
    fault(
        "the written context is not replayed",
        "_record/outcomes.py",
        'change(target, copy_containers(recorded.get("written", {})), recorded.get("removed", ()))',
        'change(target, {}, recorded.get("removed", ()))',
        "crashed_contexts",
        "crashed_types",
        tests=("tests/run/test_middleware_context.py::test_a_replay_repeats_the_writes_of_a_middleware",),
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
        'from_fields(Usage, fields["usage"])).as_chunk()',
        "Usage()).as_chunk()",
        "crashed_contexts",
    ),
    fault(
        "the start of a call is not committed",
        "_record/recorder.py",
        "await self._sink.commit()  # the function may run only if this succeeds",
        "pass",
        "crashed_contexts",
        "lost_locks",
        tests=("tests/record/test_journal.py::test_a_start_is_on_the_disk_before_the_function_runs",),
    ),
    fault(
        "a call that a crash has cut runs again",
        "_record/entry_recorder.py",
        "elif key in self._facts.started and not call.is_repeatable:",
        "elif False:",
        "crashed_contexts",
        tests=("tests/record/test_journal.py::test_a_call_without_an_outcome_is_not_repeated",),
    ),
    fault(
        "the notifier does not wake the readers",
        "runs/_notifier.py",
        "            self._event.set()\n",
        "",
        "crashed_contexts",
    ),
    fault(
        "the revision of a conversation is not checked",
        "_log/conversations.py",
        "if revision is None or revision != change.base:",
        "if False:",
        "shared_conversations",
        tests=("tests/conversations/test_stores.py::test_a_writer_that_comes_second_is_a_conflict",),
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
        tests=("tests/run/test_unknown_calls.py::test_a_repeatable_call_that_was_cut_stays_open",),
    ),
    fault(
        "an undecided call runs",
        "_run/resuming.py",
        'call.wait(kind(question.get("reason", NOT_DECIDED), data=question.get("data")))',
        "call.decide(dataclasses.replace(earlier[call.index], is_approval=True))",
        "agent_tools",
        tests=("tests/run/test_decisions.py::test_nothing_in_the_history_can_approve",),
    ),
    fault(
        "resume=True approves all calls",
        "_run/resuming.py",
        "if isinstance(resume, AllApproved):",
        "if isinstance(resume, AllApproved | bool):",
        tests=("tests/run/test_resume_values.py::test_a_value_has_one_meaning",),
    ),
    fault(
        "a denied call runs",
        "_run/resuming.py",
        'call.finish(ToolOutcome(f"{text}: {reason}" if reason else text, unknown=has_started))',
        "call.decide(dataclasses.replace(earlier, is_approval=True))",
        "middlewares",
        "code_mode",
        tests=("tests/run/test_decisions.py::test_a_decision_may_answer_in_place_of_the_function",),
    ),
    fault(
        "a call with approve= is not asked",
        "_run/execution.py",
        "if (tool.approve is not False or tool.is_external) and not call.has_approval:",
        "if tool.is_external and not call.has_approval:",
        "middlewares",
        "code_mode",
        "agent_tools",
        tests=("tests/run/test_waiting.py::test_a_call_that_needs_approval_stays_open",),
    ),
    # --- the turn ---
    fault(
        "the first change of the context wins",
        "_run/call.py",
        "changes.update(outcome.result.context_variables)",
        "changes = {**outcome.result.context_variables, **changes}",
        "eager_tools",
        tests=("tests/run/test_concurrency.py::test_results_are_merged_in_call_order",),
    ),
    fault(
        "the first handoff wins",
        "_run/call.py",
        "target = outcome.result.agent",
        "target = target or outcome.result.agent",
        "handoffs",
        tests=("tests/run/test_state.py::test_the_last_handoff_of_a_turn_wins",),
    ),
    fault(
        "the agent is switched before the changes are merged",
        "_run/state.py",
        "self.context.update(self.turn.calls.changes())\n",
        "if self.turn.calls.handed_to() is None:\n            self.context.update(self.turn.calls.changes())\n",
        "handoffs",
        tests=("tests/run/test_concurrency.py::test_the_next_agent_sees_the_changes_of_the_turn_that_hands_off",),
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
        "unknown_calls += turn.calls.unknown_calls()",
        "pass",
        "middlewares",
        tests=("tests/run/test_unknown_calls.py::test_a_call_that_was_cut_is_unknown",),
    ),
    fault(
        "two functions that write the context run together",
        "_tools/effects.py",
        "runs_together=is_async and not writes_context if",
        "runs_together=is_async if",
        "typed_context",
        tests=("tests/run/test_plan.py::test_groups",),
    ),
    # --- eager tools ---
    fault(
        "an eager call is kept after its arguments have changed",
        "_run/eager.py",
        "(call.id, call.name, call.arguments) == (early.id, early.name, self._arguments)",
        "(call.id, call.name) == (early.id, early.name)",
        "eager_tools",
        tests=("tests/run/test_eager_tools.py::test_a_call_that_changes_after_its_start_runs_again",),
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
        tests=("tests/leaving/test_edges.py::test_the_answer_of_the_model_is_closed_before_its_reader_continues",),
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
        "            spending.add(completion.usage)\n",
        "            spending.usage += completion.usage\n",
        "agent_tools",
    ),
    # --- limits and types ---
    fault(
        "one turn more than the budget",
        "_run/budget.py",
        "if is_reached(self.turns, budget.turns):",
        "if is_reached(self.turns - 1, budget.turns):",
        "budgets",
    ),
    fault(
        "one call more than the budget",
        "_run/budget.py",
        "is_reached(spending.calls, spending.budget.tool_calls)",
        "is_reached(spending.calls - 1, spending.budget.tool_calls)",
        "budgets",
    ),
    fault(
        "the tokens of a budget are not compared",
        "_run/budget.py",
        "if is_reached(self.tokens, budget.tokens):",
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
        "            yield from run_check(output.check, value, self._context, self._resources)\n",
        "            pass\n",
        "structured_output",
    ),
    fault(
        "a token of a limiter is never released",
        "_runtime/backend.py",
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
        tests=("tests/values/test_context_copies.py::test_two_variables_that_change_in_the_same_way_are_both_changed",),
    ),
    # --- records ---
    fault(
        "a value of a Result that the next call changes in place is lost in a replay",
        "_record/outcomes.py",
        "self._results.append((changed, copy_containers(changed)))",
        "self._results.append((changed, dict(changed)))",
        tests=(
            "tests/run/test_middleware_context.py::test_a_replay_has_the_changes_that_a_call_makes_in_the_result_of_another",
        ),
    ),
    fault(
        "the merged changes of a Result are recorded again",
        "_record/entry_recorder.py",
        "if outcome.result is not None and call.parent is None:",
        "if False:",
        tests=("tests/record/test_records.py::test_the_changes_of_a_result_are_recorded_once",),
    ),
    fault(
        "the changes of a Result inside code count as recorded",
        "_record/entry_recorder.py",
        "if outcome.result is not None and call.parent is None:",
        "if outcome.result is not None:",
        tests=("tests/code/test_records.py::test_every_place_of_a_log_is_a_place_to_continue_from",),
    ),
    fault(
        "the writes of a middleware around a completion are lost in a replay",
        "_record/entry_recorder.py",
        "is_reader = call is not None and not (call.tool is not None and call.tool.effects.writes_context)",
        "is_reader = call is None or call.tool is None or not call.tool.effects.writes_context",
        tests=("tests/run/test_middleware_context.py::test_a_replay_repeats_the_writes_of_a_middleware",),
    ),
    fault(
        "the unknown calls of code that waits are lost with its process",
        "_record/outcomes.py",
        'return {**changed, **({"unknown_inside": unknown} if unknown else {})}',
        "return {**changed}",
        tests=(
            "tests/record/test_code.py::test_code_that_waits_lists_its_unknown_calls_after_the_death_of_its_process",
        ),
    ),
    # --- code ---
    fault(
        "a handoff inside code ends its round before the later calls",
        "_run/inner_calls.py",
        "            if not turn.finish_group(group):",
        "            if TurnCalls(group).handed_to() is not None:\n                break\n            if not turn.finish_group(group):",
        tests=("tests/code/test_rounds.py::test_a_gather_does_the_same_as_one_message",),
    ),
    fault(
        "code whose only call is a refused handoff counts as work",
        "_run/budget.py",
        "code = {call.parent for call in self._admitted}  # does what its calls do",
        "code = set[Call]()",
        tests=("tests/code/test_rounds.py::test_handoffs_inside_code_that_do_nothing_in_between_are_stopped",),
    ),
    fault(
        "code takes the text of a guard for the data of a function",
        "guards/_tool.py",
        "error = outcome.error or (None if call.parent is None else ToolError(text))",
        "error = outcome.error",
        tests=("tests/code/test_values.py::test_a_withheld_result_is_an_error_in_the_code",),
    ),
    # --- the turn, agents as tools and eager tools ---
    fault(
        "calls with equal ids that may wait run together",
        "_run/turn.py",
        "keys and ((call.id, call.name) in keys or not",
        "keys and (not",
        tests=("tests/run/test_waiting_order.py::test_calls_of_one_id_and_name",),
    ),
    fault(
        "a writer passes a waiting call that reads the context",
        "_run/turn.py",
        "any(other.takes_context or other.may_return_result for other in waiting)",
        "any(other.may_return_result for other in waiting)",
        tests=("tests/run/test_plan.py::test_groups",),
    ),
    fault(
        "a decision that the run did not reach loses the question of its call",
        "_run/turn.py",
        "(call, self._entry_of(call) or self._recorded.get(call.index))",
        "(call, self._entry_of(call))",
        tests=("tests/run/test_waiting.py::test_a_decision_about_a_call_that_was_not_reached",),
    ),
    fault(
        "an agent as a tool loses the unknown calls of its run",
        "_run/run_info.py",
        "            caller.note_unknown_inside([*caller.unknown_inside, *self.response.unknown_calls])\n",
        "            pass\n",
        tests=("tests/code/test_unknown.py::test_an_agent_tool_reports_the_calls_of_its_run",),
    ),
    fault(
        "SystemExit in a task group of a function ends the process",
        "_run/execution.py",
        "except (Exception, SystemExit, BaseExceptionGroup) as error:  # noqa",
        "except (Exception, SystemExit) as error:  # noqa",
        tests=("tests/runs/test_exits.py::test_an_exit_in_a_task_group_is_a_failed_call",),
    ),
    fault(
        "eager calls of one completion do not share their context",
        "_run/eager.py",
        "if self._has_middleware and self._shared is None:",
        "if self._has_middleware:",
        tests=(
            "tests/run/test_middleware_context.py::test_writes_of_a_middleware_are_the_same_as_in_serial_execution",
        ),
    ),
    # --- values and text ---
    fault(
        "two typed views undo the changes of each other",
        "_values/context_types.py",
        "declared = {key: context[key] for key in self._fields if key in context}\n        try:\n            undeclared",
        "declared = dict(source)\n        try:\n            undeclared",
        tests=("tests/values/test_context_merges.py::test_concurrent_writers_of_different_leaves_keep_both_changes",),
    ),
    fault(
        "a result with text that UTF-8 cannot encode is not repaired",
        "_run/outcome.py",
        "if (content := sendable_data(content)) is not self.content:",
        "if False:",
        tests=("tests/run/test_text_that_cannot_be_encoded.py::test_the_text_of_a_middleware_is_repaired",),
    ),
    fault(
        "a null in place of a default fails the call",
        "_tools/schema.py",
        "others = without_refused_nulls(part, error, self.schema) if adapter is self.named else None",
        "others = None",
        tests=("tests/tools/test_arguments.py::test_null_means_the_default_if_the_type_refuses_it",),
    ),
    # --- conversations and runs ---
    fault(
        "a run that answers a question loses the settings of the run that waits",
        "runs/_prepared.py",
        'settings=new.settings or asked.get("_settings", {})',
        "settings=new.settings",
        tests=("tests/runs/contract/test_answers.py::test_settings_and_notes_outlive_a_question",),
    ),
    fault(
        "a conversation is deleted while its run is active",
        "runs/_deleting.py",
        "    if active:\n",
        "    if False:\n",
        tests=("tests/runs/contract/test_deleting.py::test_a_conversation_with_an_active_run_is_not_deleted",),
    ),
    fault(
        "the limits of kept runs delete a run that waits",
        "runs/_deleting.py",
        "_add_old(too_many.old, [run for run in runs if run.id not in waiting], limits)",
        "_add_old(too_many.old, runs, limits)",
        tests=("tests/runs/contract/test_waiting_runs.py::test_a_run_that_waits_is_kept",),
    ),
    fault(
        "two processes with two paths of one file do not see each other",
        "_sql/processes.py",
        "self._path = Path(path).resolve()",
        "self._path = Path(path)",
        tests=("tests/sql/test_processes.py::test_a_file_with_two_paths_has_the_same_locks",),
    ),
    # --- the wire and the provider ---
    fault(
        "a usage in several chunks ends a stream",
        "_wire/accumulator.py",
        "self._ends_with_usage = self._started and is_zero(self._usage) and self._has_content()",
        "self._ends_with_usage = self._started and self._has_content()",
        tests=("tests/wire/test_answers.py::test_a_stream_that_ends_with_its_usage",),
    ),
    fault(
        "unknown keys of an answer are sent back to the provider",
        "_values/wire_messages.py",
        'if value is not None and (key in FIELDS or is_of_model(key)) and (value != [] or key == "content")',
        'if value is not None and key not in _NEVER_SENT and (value != [] or key == "content")',
        tests=("tests/wire/test_answers.py::test_reasoning_and_unknown_keys",),
    ),
    fault(
        "a redirect to another origin gets the key",
        "_providers/redirects.py",
        "if origin != (old := _origin(request.url)) and not _is_upgrade(old, origin):",
        "if False:",
        tests=("tests/providers/test_proxies.py::test_a_redirect_to_another_origin_takes_no_header_of_the_user_along",),
    ),
    fault(
        "one rejection pauses all requests while others succeed",
        "_rate_limits/policy.py",
        "if (is_news or now >= self._paused_until) and self._paid >= 1:",
        "if False:",
        tests=("tests/rate_limits/test_pauses.py::test_a_rejection_that_is_paid_lets_its_own_request_wait",),
    ),
    fault(
        "the second of two streams with content at once stays open",
        "middleware/_hedge.py",
        "        if is_late:\n",
        "        if False:\n",
        tests=("tests/middleware/test_hedge_order.py::test_one_request_is_open_when_the_reader_gets_text",),
    ),
)
