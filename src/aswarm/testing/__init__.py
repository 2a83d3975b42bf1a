"""Test tools for your own agents, without a network: a scripted model, and checks of histories and of middleware.

The scripted model is the HTTP transport of a real `AsyncOpenAI` client. So all code above the socket is real, and a test can
check the requests that were sent.

    model = ScriptedModel([call("get_weather", city="Paris"), "It is sunny."], cut=3)
    response = await AsyncSwarm(client=model.client()).run(agent, "What is the weather?")
    assert model.requests[1].messages[-1]["content"] == "sunny"
    check_history(response.messages)
"""

from aswarm._values import public_names as _public

from ._answer import ScriptedAnswer, ScriptedCall, call
from ._history import check_history
from ._middleware_check import check_middleware
from ._run_as_test import run_as_test
from ._scripted_model import Failure, RawAnswer, Request, ScriptedModel, Step

__all__ = [
    "Failure",
    "RawAnswer",
    "Request",
    "ScriptedAnswer",
    "ScriptedCall",
    "ScriptedModel",
    "Step",
    "call",
    "check_history",
    "check_middleware",
    "run_as_test",
]

_public.publish(globals())
