"""AG-UI 1.0: the events of a run for clients such as CopilotKit."""
