"""The logic of a chat: whether a line is a message, an answer or a `/` command, and what to show after a run.

The loop (`_loop`) decides how lines are read and how work is awaited: with an event loop, or in a thread that blocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from aswarm._blocking.caller import in_callers_thread
from aswarm._values.agent import Response
from aswarm._values.content import described
from aswarm._values.errors import AswarmError, ConfigurationError, ToolError
from aswarm._values.events import CallWaiting
from aswarm._values.messages import is_refused
from aswarm._values.text import counted, one_line, sendable
from aswarm.extensions import tools_of

from ._display import Display, usage_text
from ._session import Session, StartRun

if TYPE_CHECKING:
    from aswarm.extensions import EventStream

    from ._kept import KeptChat

T = TypeVar("T")
_READ_ERRORS = (EOFError, KeyboardInterrupt, UnicodeDecodeError)
_ERROR = 600  # characters of an error


class Do(Protocol):
    """Awaits work on an event loop. Ctrl-C cancels the work, and raises KeyboardInterrupt."""

    async def __call__(self, work: Callable[[], Awaitable[T]], /) -> T: ...


class Chat:
    """A chat. `kept`: executes its runs and keeps its messages. `read`: returns the next line of the user."""

    def __init__(
        self, session: Session, kept: KeptChat, display: Display, read: Callable[[], Awaitable[str]], do: Do
    ) -> None:
        self.session = session
        self.kept = kept
        self.display = display
        self.do = do
        self.is_over = False  # whether the user has left the chat
        self._read = read
        self._run: EventStream | None = None
        self._interrupted = False

    # --- lines ---

    async def talk(self, store: str | None, conversation_id: str) -> None:
        """Read and process lines until the user leaves. `store`: the file or the URL of the store of the conversation."""
        try:
            if store is not None and (text := await self.do(partial(self.kept.open, store, conversation_id))):
                self.display.show_text(text)
            while not self.is_over:
                try:
                    await self._process(await self._next_line())
                    await self.do(self.kept.keep)
                except _READ_ERRORS as error:
                    self._on_read_error(error)
                except (AswarmError, ToolError) as error:
                    self.display.show_error(f"{type(error).__name__}: {one_line(error, _ERROR)}")
        finally:
            await self.do(self.kept.close)

    async def _next_line(self) -> str:
        line = await self._read()
        self._interrupted = False
        return line

    async def _process(self, line: str) -> None:
        """Process a line. A line that starts with `/` is a command; with a space before the `/`, it is a message."""
        text = line.strip().encode("utf-8", "replace").decode()  # halves of surrogate pairs cannot be sent
        if _is_command(line):
            await self._execute(*text.removeprefix("/").partition(" "))
        elif text:
            await self.run(self.session.send(text))

    async def _execute(self, name: str, _: str, argument: str) -> None:
        command, argument = COMMANDS.get(name.lower()), argument.strip()
        if command is None:
            self.display.show_error(f"There is no command /{name}. See /help, or start with a space to send the line.")
        elif command.names_conversation and not argument:
            needed = "the id of a conversation" if self.session.has_store else "the path of a file"
            self.display.show_error(f"/{name} needs {needed}.")
        elif (work := command.action(self, argument)) is not None:
            await work

    async def confirms(self, question: str, otherwise: str) -> bool:
        """Ask the user for a yes. Only yes confirms; Ctrl-C and the end of the input do not, and `otherwise` is shown."""
        is_confirmed = False
        try:
            is_confirmed = (await self.asked(question)).lower() in ("y", "yes")
        finally:
            if not is_confirmed:
                self.display.show_text(otherwise)
        return is_confirmed

    async def asked(self, question: str) -> str:
        """Show a question, and return the line of the user."""
        self.display.show_text(question)
        return sendable((await self._next_line()).strip())

    def _on_read_error(self, error: BaseException) -> None:
        """Handle an exception of reading a line. The end of the input, or Ctrl-C twice in a row, ends the chat."""
        match error:
            case KeyboardInterrupt() if not self._interrupted:
                self._interrupted = True
                self.display.show_text("To leave, press Ctrl-C again or Ctrl-D, or type /exit.")
            case UnicodeDecodeError():
                self.display.show_error(f"The input cannot be decoded: {error}")
            case _:
                self.is_over = True

    # --- runs ---

    async def run(self, start: StartRun | None) -> None:
        """Execute the run, and show it. While its calls wait, ask the user, and execute the run that continues."""
        while start is not None:
            response = await self._finished(start)
            start = await self.decided() if response.stop == "waiting" else None

    async def decided(self) -> StartRun | None:
        """Ask the user about the calls that wait. Returns the run that continues; None after a command, which leaves them open."""
        questions = self.session.questions
        while not questions.is_done:
            self.display.show_text(questions.text)
            try:
                line = await self._next_line()
            except _READ_ERRORS:
                self.display.show_text(self.session.open_calls_hint)
                raise
            if _is_command(line):
                await self._process(line)
                return None
            if (fault := questions.take(line)) is not None:
                self.display.show_error(fault)
        return self.session.decide(questions.decisions)

    async def _finished(self, start: StartRun) -> Response:
        """Execute the run, show its events and its end, and keep its messages."""
        self._run = None
        failure: AswarmError | None = None
        try:
            await self.do(partial(self._follow, start))
        except KeyboardInterrupt:
            pass  # Ctrl-C has cancelled the run, and its response shows this
        except AswarmError as error:
            failure = error
        finally:
            self.display.end_run()
        nothing = Response(agent=start.agent, context_variables=start.context, stop="error" if failure else "cancelled")
        response, read = (nothing, "") if self._run is None else (self._run.response, self._run.partial)
        self.session.end_run(start, response, failed=failure is not None, partial=read)
        self._show_end(response, failure)
        await self.do(self.kept.end_run)
        return response

    async def _follow(self, start: StartRun) -> None:
        async with await self.kept.stream(start) as self._run:
            async for event in self._run:
                if not isinstance(event, CallWaiting):  # the chat asks about these calls after the run
                    await in_callers_thread(partial(self.display.show_event, event))

    def _show_end(self, response: Response, failure: AswarmError | None) -> None:
        if response.usage.total_tokens:  # 0 if the provider sends no usage
            self.display.show_usage(response.usage)
        if failure is not None:
            self.display.show_error(f"{type(failure).__name__}: {one_line(failure, _ERROR)} (/resume tries again)")
        elif response.stop == "cancelled":
            self.display.show_text(f"Stopped. {self.session.open_calls_hint}".rstrip())
        elif response.stop == "answer" and not (response.text.strip() or is_refused(response.messages)):
            self.display.show_text("The answer is empty.")
        elif response.stop == "max_turns":
            completions = counted(response.usage.requests, "completion")
            self.display.show_text(f"Stopped after {completions}. /resume continues.")


def _is_command(line: str) -> bool:
    return line.startswith("/") or line.strip().lower() in ("exit", "quit")


# --- commands ---


@dataclass(frozen=True, slots=True)
class Command:
    """A `/` command. `argument`: the name of its argument in the help.

    `names_conversation`: whether the argument names a conversation. The argument is the path of a file or, if the chat has a
    store, an id.
    """

    action: Callable[[Chat, str], Awaitable[None] | None]
    help: str
    argument: str = ""
    names_conversation: bool = False


def _help(chat: Chat, _: str) -> None:
    rows = [(f"/{name} {command.argument}".rstrip(), command.help) for name, command in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    lines = [f"{usage:<{width}}  {text}" for usage, text in rows]
    last = "Ctrl-C stops an answer; the part that was read stays in the conversation, with a mark."
    chat.display.show_text("\n".join([*lines, last]))


def _agent(chat: Chat, name: str) -> None:
    session, known = chat.session, chat.session.agents
    if name and name not in known:
        chat.display.show_error(f"There is no agent {name!r}. Known agents: {', '.join(known)}.")
        return
    session.agent = known[name] if name else session.agent
    agent = session.agent
    try:
        functions = ", ".join(tools_of(agent)) or "none"
    except ConfigurationError as error:
        functions = one_line(error)
    text = f"{agent.name} ({agent.model}); functions: {functions}; known agents: {', '.join(known)}"
    chat.display.show_text(text)


def _history(chat: Chat, _: str) -> None:
    if chat.session.history:
        chat.display.show_history(chat.session.history)
    else:
        chat.display.show_text("There are no messages yet.")


def _context(chat: Chat, _: str) -> None:
    lines = [f"{one_line(name)} = {_shown(value)}" for name, value in chat.session.context.items()]
    chat.display.show_text("\n".join(lines) or "There are no context variables.")


def _shown(value: object) -> str:
    try:
        return one_line(repr(value))
    except Exception as error:  # noqa: BLE001 - the __repr__ of a user's class may raise anything
        return f"<{type(value).__name__}: its repr failed: {one_line(error)}>"


def _usage(chat: Chat, _: str) -> None:
    chat.display.show_text(usage_text(chat.session.usage))


async def _resume(chat: Chat, _: str) -> None:
    session = chat.session
    if session.failed_message is None and not session.questions.is_done:
        await chat.run(await chat.decided())
    elif (start := session.resume()) is not None:
        await chat.run(start)
    else:
        chat.display.show_error("There is nothing to resume. Send a message.")


async def _save(chat: Chat, name: str) -> None:
    length = await chat.do(partial(chat.kept.replaced_by_save, name))
    question = f"{name} has another conversation ({counted(length, 'message')}). Replace it? Type yes, or anything else to keep it."
    if not length or await chat.confirms(question, "Not saved."):
        chat.display.show_text(await chat.do(partial(chat.kept.save, name)))


async def _load(chat: Chat, name: str) -> None:
    chat.display.show_text(await chat.do(partial(chat.kept.load, name)))


async def _prompt(chat: Chat, number: str) -> None:
    prompts = [(server, each) for server in chat.kept.prompts for each in await chat.do(server.prompts)]
    if not (number.isdecimal() and 0 < int(number) <= len(prompts)):
        rows = [
            f"/prompt {at}  {each.title or each.name}: {each.description or ''}"
            for at, (_, each) in enumerate(prompts, 1)
        ]
        chat.display.show_text(
            "\n".join(one_line(row) for row in rows) or "There are no prompts; the servers of --mcp may have some."
        )
        return
    server, prompt = prompts[int(number) - 1]
    arguments: dict[str, str] = {}
    for each in prompt.arguments or ():
        need = "required" if each.required else "empty to leave it out"
        if value := await chat.asked(one_line(f"{each.name} ({need}): {each.description or ''}")):
            arguments[each.name] = value
    content = await chat.do(partial(server.prompt, prompt.name, arguments))
    chat.display.show_text(described(content))
    if await chat.confirms("Send this message? Type yes, or anything else to leave it.", "Not sent."):
        await chat.run(chat.session.send(content))


def _reset(chat: Chat, _: str) -> None:
    chat.session.reset()
    chat.display.show_text(f"New conversation. The active agent is {chat.session.agent.name}.")


def _exit(chat: Chat, _: str) -> None:
    chat.is_over = True


COMMANDS = {
    "help": Command(_help, "show this list"),
    "agent": Command(_agent, "show the active agent, or switch to another one", "[NAME]"),
    "history": Command(_history, "show the messages"),
    "context": Command(_context, "show the context variables"),
    "usage": Command(_usage, "show the tokens used so far"),
    "resume": Command(
        _resume, "continue after an error or Ctrl-C; runs the open calls, or asks about the waiting calls"
    ),
    "prompt": Command(_prompt, "list the prompts of the MCP servers, or show and send one", "[NUMBER]"),
    "reset": Command(_reset, "start a new conversation"),
    "save": Command(
        _save,
        "save the conversation to a file, and continue in it; in a chat with a store, copy it to this id",
        "NAME",
        names_conversation=True,
    ),
    "load": Command(
        _load,
        "continue the conversation in a file; in a chat with a store, the conversation with this id",
        "NAME",
        names_conversation=True,
    ),
    "exit": Command(_exit, "leave the chat; Ctrl-D does the same"),
    "quit": Command(_exit, "the same as /exit"),
}
