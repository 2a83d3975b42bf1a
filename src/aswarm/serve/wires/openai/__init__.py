"""OpenAI's Chat Completions: each agent is a model, for every client of this API."""
