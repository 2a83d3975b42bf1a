"""Where completions come from: sources for `AsyncSwarm(source)`, and the limits of a provider."""

from ._providers.anthropic import AnthropicSource
from ._providers.compatible import completion_error
from ._providers.http import HTTPSource
from ._providers.openai import ResponsesSource, is_openai, takes_breakpoints
from ._rate_limits.policy import RateLimits
from ._wire.request import CompletionRequest, CompletionSource

__all__ = [
    "AnthropicSource",
    "CompletionRequest",
    "CompletionSource",
    "HTTPSource",
    "RateLimits",
    "ResponsesSource",
    "completion_error",
    "is_openai",
    "takes_breakpoints",
]
