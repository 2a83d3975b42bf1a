"""Names of OpenTelemetry's semantic conventions for generative AI, in the version of the schema URL.

The conventions are in development, and later versions change some names. A change to another version changes the URL and the
names in this file. Names of aswarm itself start with `aswarm.`. The tables map keys of a request or of a usage object to names.
"""

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.1"

# --- operations -------------------------------------------------------------------------------------------------------

CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
INVOKE_AGENT = "invoke_agent"

# --- attributes of spans ----------------------------------------------------------------------------------------------

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
CONVERSATION_ID = "gen_ai.conversation.id"
AGENT_NAME = "gen_ai.agent.name"
ERROR_TYPE = "error.type"

REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_STOP_SEQUENCES = "gen_ai.request.stop_sequences"
REQUEST_FLOATS = {
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
}
REQUEST_INTEGERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}
OUTPUT_TYPE = "gen_ai.output.type"

RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_DETAILS = {
    ("prompt_tokens_details", "cached_tokens"): "gen_ai.usage.cache_read.input_tokens",
    ("prompt_tokens_details", "cache_creation_tokens"): "gen_ai.usage.cache_creation.input_tokens",
    ("prompt_tokens_details", "cache_write_tokens"): "gen_ai.usage.cache_creation.input_tokens",
    ("completion_tokens_details", "reasoning_tokens"): "gen_ai.usage.reasoning.output_tokens",
}

TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"

# --- attributes with content ------------------------------------------------------------------------------------------

SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
TOOL_CALL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT = "gen_ai.tool.call.result"

# --- metrics ----------------------------------------------------------------------------------------------------------

OPERATION_DURATION = "gen_ai.client.operation.duration"
TIME_TO_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105 - the name of a metric
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - the name of an attribute
SECONDS_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS_BUCKETS = tuple(4**power for power in range(14))

# --- names of aswarm, if the conventions have no name -----------------------------------------------------------------

RUN_ID = "aswarm.run.id"
COST = "aswarm.cost"  # in US dollars
CACHE_MISS_KIND = "aswarm.cache_miss.kind"
CACHE_MISS_WHERE = "aswarm.cache_miss.where"
CACHE_MISS_KEPT = "aswarm.cache_miss.kept_tokens"
CACHE_MISS_LOST = "aswarm.cache_miss.lost_tokens"
STOP = "aswarm.stop"  # of a run: `Response.stop`; of an unfinished completion or call: "cancelled" or "waiting"
HANDOFF = "aswarm.handoff"
HANDOFF_SOURCE = "aswarm.handoff.source"
HANDOFF_TARGET = "aswarm.handoff.target"
