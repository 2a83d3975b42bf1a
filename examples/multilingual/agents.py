"""The desk of a small museum: an agent for English, which hands off to agents for Spanish and for Chinese.

All agents have the same facts. Each agent has the other two agents in its `functions`. An agent there is a handoff: the model gets
a function such as `transfer_to_spanish_agent`.
"""

# ruff: noqa: RUF001 - Chinese has its own punctuation

from __future__ import annotations

from aswarm import Agent

FACTS = "The museum is open from 10 to 18, not on Mondays. A ticket is 8 EUR, for children nothing. Dogs wait outside."

english_agent = Agent(
    name="English Agent",
    instructions=f"You answer the visitors of a museum in English, in one or two sentences. {FACTS} "
    "Visitors who write in Spanish or in Chinese you hand over at once to the agent for their language.",
)
spanish_agent = Agent(
    name="Spanish Agent",
    instructions="Atiendes a los visitantes de un museo en español, con una o dos frases. "
    f"Lo que sabes: {FACTS} "
    "Si escriben en inglés o en chino, los pasas enseguida al agente de su idioma.",
)
chinese_agent = Agent(
    name="Chinese Agent",
    instructions=f"你在博物馆问讯处用中文回答参观者的问题，每次一两句话。你知道的情况：{FACTS}"
    "如果参观者用英语或西班牙语提问，请马上转给相应语言的同事。",
)

english_agent.functions = [spanish_agent, chinese_agent]
spanish_agent.functions = [english_agent, chinese_agent]
chinese_agent.functions = [english_agent, spanish_agent]
