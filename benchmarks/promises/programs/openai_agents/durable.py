"""What the programs with DBOS share: the agent, its tools, and the database of DBOS.

The documentation names DBOS for runs that must survive a crash
(https://openai.github.io/openai-agents-python/running_agents/#durable-execution-integrations-and-human-in-the-loop). The programs follow
https://docs.dbos.dev/integrations/openai-agents: the program calls `DBOSRunner` in a workflow, and each tool is a step or a workflow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from agents import function_tool, set_tracing_disabled
from dbos import DBOS, DBOSClient, SetWorkflowID
from stage import FOLDER

set_tracing_disabled(True)
DATABASE = f"sqlite:///{FOLDER}/dbos.sqlite"


def launch(executor: str = "local") -> None:
    """Start DBOS in this process. It recovers the unfinished workflows of the processes with the same `executor`."""
    DBOS(
        config={
            "name": "desk",
            "application_version": "1",
            "executor_id": executor,
            "system_database_url": DATABASE,
            "log_level": "WARNING",
        }
    )
    DBOS.launch()


def client() -> DBOSClient:
    """Return a client, for a process that executes no workflows."""
    return DBOSClient(system_database_url=DATABASE)


def repeatable(function: Callable[..., Any]) -> Any:
    """Return a function as a tool that DBOS may repeat after a crash: a step."""
    return function_tool(DBOS.step()(function))


def once(function: Callable[..., Any], *, needs_approval: bool = False) -> Any:
    """Return a function as a tool that DBOS never starts again after a crash, and cancels with its workflow.

    DBOS repeats a step that a crash has interrupted. So the tool is a workflow without recovery
    (https://docs.dbos.dev/python/reference/decorators, `max_recovery_attempts`), whose id is the id of the call.
    """
    step = DBOS.step(name=f"{function.__name__} step", preemptible=True)(function)

    @wraps(function)
    async def only_once(*args: Any, **kwargs: Any) -> Any:
        return await step(*args, **kwargs)

    workflow = DBOS.workflow(name=f"{function.__name__} once", max_recovery_attempts=0)(only_once)
    tool = function_tool(workflow, needs_approval=needs_approval, failure_error_function=_failed)

    async def invoke(context: Any, arguments: str) -> Any:
        with SetWorkflowID(context.tool_call_id):
            return await tool.on_invoke_tool(context, arguments)

    return replace(tool, on_invoke_tool=invoke)


def _failed(_context: Any, error: Exception) -> str:
    return f"The call was started, and its outcome is unknown: {error}"
