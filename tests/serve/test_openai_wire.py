"""The wire of Chat Completions: chunks and whole completions as the types of openai's client read them."""

from __future__ import annotations

from typing import Any

from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from aswarm.runs import Entry
from aswarm.serve.wires.openai.encoder import OpenAIWire, failure_head, models_body, whole_completion
from aswarm.testing import Failure, call
from aswarm.testing import ScriptedAnswer as Scripted
from tests.support.serve.wire_checks import ChatReader, log_of


def read(log: list[Entry], **options: Any) -> ChatReader:
    wire, reader = OpenAIWire("triage", **options), ChatReader()
    for entry in log:
        reader.read(wire.encode(entry))
    return reader


def test_chunks_and_completions_are_of_the_types_of_openai() -> None:
    """Strictly: each value has the type that the client declares."""
    log = log_of(Scripted("I look.", [call("look", n=1)], {"reasoning_content": "Hm."}), "Done.")
    reader = read(log, include_usage=True, activity=True)
    chunks = [ChatCompletionChunk.model_validate(chunk, strict=False) for chunk in reader.chunks]
    assert [chunk.model_dump(exclude_unset=True) for chunk in chunks] == reader.chunks
    assert {chunk.model for chunk in chunks} == {"triage"}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 30
    completion = ChatCompletion.model_validate(whole_completion(log, OpenAIWire("triage")))
    assert completion.choices[0].message.content == "I look.\n\nDone."
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.id == chunks[0].id == "chatcmpl-run0"
    (model,) = [Model.model_validate(each) for each in models_body(["triage"], 7)["data"]]
    assert (model.id, model.created, model.object) == ("triage", 7, "model")


def test_calls_of_the_server_are_told_as_reasoning_or_not_at_all() -> None:
    """Only with `activity`, and only before the first text."""
    log = log_of([call("look", '{"n": 1}')], call("transfer_to_b"), Scripted("One.", [call("look", n=2)]), "Two.")
    assert read(log).reasoning == ""
    reader = read(log, activity=True)
    assert reader.reasoning == 'look({"n": 1})\ntransfer_to_b({})\nA hands off to B\n'
    assert (reader.content, reader.tool_calls) == ("One.\n\nTwo.", [])


def test_reasons_to_finish() -> None:
    """A limit of turns is "length", and so is a limit of the provider."""
    assert read(log_of(Scripted("The", finish_reason="length"))).finish_reason == "length"
    assert read(log_of(Scripted("The", finish_reason="content_filter"))).finish_reason == "content_filter"
    assert read(log_of(call("look", n=1), max_turns=1)).finish_reason == "length"
    refused = whole_completion(log_of(Scripted(None, extra={"refusal": "No."})), OpenAIWire("A"))
    assert refused["choices"][0]["message"] == {"role": "assistant", "content": None, "refusal": "No."}


def test_an_error_is_one_body_in_the_stream_and_whole() -> None:
    """No `[DONE]` follows an error; the status of a whole answer is 429 only for limits of the provider."""
    log = log_of(Failure(500, "password"))
    reader = read(log)
    expected = {"message": "The run ended with an error.", "type": "server_error", "param": None, "code": "run_failed"}
    assert (reader.error, reader.is_done) == (expected, False)
    assert whole_completion(log, OpenAIWire("A")) == {"error": expected}
    assert failure_head(log[-1])[0] == 502
    limited = log_of(Failure(429))
    assert failure_head(limited[-1])[0] == 429
    assert (read(limited).error or {})["type"] == "rate_limit_error"


def test_usage_has_the_details_that_clients_know() -> None:
    """Details of a provider's own stay here."""
    details = {"prompt_tokens_details": {"cached_tokens": 4}, "cost": 1}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, **details}
    found = whole_completion(log_of(Scripted("Done.", usage=usage)), OpenAIWire("A"))["usage"]
    assert found == {key: each for key, each in usage.items() if key != "cost"}
    assert whole_completion([], OpenAIWire("A"))["usage"] == {}
