"""Code mode: the model writes Python over its tools, and one completion does the work of many.

    run_code = code_tool(orders, refund)
    agent = Agent(instructions="You help customers.", functions=[run_code])

    # The model calls run_code with:
    #     open_ones = [order for order in await orders() if order["status"] == "open"]
    #     await asyncio.gather(*[refund(order["id"], order["total"]) for order in open_ones])

The code runs in a sandbox, in another process. Each call in it is a tool call of the run: its arguments are checked, guards,
limiters, budgets and traces see it, it may wait for an approval, and records keep it. So the code may wait for days, and
continue in another process.

It needs the package `pydantic-monty`, which the extra `code` installs.
"""

from aswarm._values import public_names as _public
from aswarm._values.errors import ConfigurationError
from aswarm._values.text import how_to_install

try:
    import pydantic_monty as _  # noqa: F401
except ImportError as error:
    raise ConfigurationError(
        f"aswarm.code needs the package pydantic-monty: {how_to_install('code')} ({error})"
    ) from error

from ._sandbox import CodeLimits
from ._tool import code_tool

__all__ = ["CodeLimits", "code_tool"]

_public.publish(globals())
