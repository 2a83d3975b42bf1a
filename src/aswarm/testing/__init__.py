"""For tests of your own agents, without a network: a scripted model, and checks of histories and of middleware.

The scripted model is the transport of a real `AsyncOpenAI` client: everything above the socket is real, and tests can
assert on the requests that were sent.

    model = ScriptedModel([call("get_weather", city="Paris"), "It is sunny."], cut=3)
    response = await AsyncSwarm(client=model.client()).run(agent, "What is the weather?")
    assert model.requests[1].messages[-1]["content"] == "sunny"
    check_history(response.messages)
"""

from aswarm import _public

from ._history import check_history
from ._middleware_check import check_middleware
from ._scripted_model import (
    Answer,
    Failure,
    RawAnswer,
    Request,
    ScriptedCall,
    ScriptedModel,
    Step,
    call,
    chunks,
    completion,
)

__all__ = [
    "Answer",
    "Failure",
    "RawAnswer",
    "Request",
    "ScriptedCall",
    "ScriptedModel",
    "Step",
    "call",
    "check_history",
    "check_middleware",
    "chunks",
    "completion",
]

_public.publish(globals())
