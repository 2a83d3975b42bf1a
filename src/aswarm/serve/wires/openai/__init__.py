"""OpenAI's Chat Completions: the agents as models, for every client of that API."""
