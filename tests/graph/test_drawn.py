"""A graph as Mermaid and as DOT. No name breaks their syntax."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from aswarm import Agent
from aswarm.graph import Graph, agent_graph

refunds = Agent(name="Refunds")
AGENTS = {"refunds": refunds}


def look_up_order(order_id: int) -> str:
    """Look up."""
    return ""


def route(name: str) -> Agent:
    return AGENTS[name]


def make() -> Agent:
    return Agent(name="New")


def example() -> Graph:
    return agent_graph(Agent(name="Triage", functions=[refunds, look_up_order, route, make]))


def test_mermaid() -> None:
    """Agents have their functions; certain handoffs are arrows; the others are dashed and explained."""
    assert (
        example().mermaid()
        == """\
flowchart LR
    a1["<b>Triage</b><br/>look_up_order<br/>route<br/>make"]
    a2["<b>Refunds</b>"]
    unknown(("?"))
    a1 -->|"transfer_to_refunds"| a2
    a1 -.->|"route (maybe)"| a2
    a1 -.->|"make (maybe)"| unknown
    %% dashed: maybe
    %% route of Triage may hand off to Refunds; only a call shows whether it does.
    %% make of Triage may hand off to an agent that does not exist yet or cannot be found; only a call shows whether it does.
"""
    )


def test_dot() -> None:
    """The same in DOT, with the notes below the picture."""
    assert (
        example().dot()
        == """\
digraph agents {
    rankdir=LR;
    graph [charset="UTF-8", fontname="sans-serif", labelloc=b, labeljust=l, fontsize=10];
    node [shape=box, style=rounded, fontname="sans-serif"];
    edge [fontname="sans-serif", fontsize=10];
    label="dashed: maybe\\lroute of Triage may hand off to Refunds; only a call shows whether it does.\\l\
make of Triage may hand off to an agent that does not exist yet or cannot be found; only a call shows whether it does.\\l";
    a1 [label="Triage\\nlook_up_order\\nroute\\nmake"];
    a2 [label="Refunds"];
    unknown [label="?", shape=circle];
    a1 -> a2 [label="transfer_to_refunds"];
    a1 -> a2 [label="route (maybe)", style=dashed];
    a1 -> unknown [label="make (maybe)", style=dashed];
}
"""
    )


def test_a_certain_graph_has_no_notes() -> None:
    """Without a possible handoff there is no legend."""
    graph = agent_graph(Agent(name="Triage", functions=[refunds]))
    assert "maybe" not in graph.mermaid() + graph.dot()
    assert "unknown" not in graph.mermaid() + graph.dot()


# The name, and the name on one line.
NAMES = {
    'a "quoted" name': 'a "quoted" name',
    "two\nlines\r\n": "two lines",
    'back\\slash\\"\\n': 'back\\slash\\"\\n',
    "<b>bold</b> & &amp; #35;": "<b>bold</b> & &amp; #35;",
    "`**md**` _x_": "`**md**` _x_",
    '"]; a9 --> a1; ["': '"]; a9 --> a1; ["',
    '"]; a9 -> a1; [label="': '"]; a9 -> a1; [label="',
    "%%{init: {}}%% classDef a:#x;": "%%{init: {}}%% classDef a:#x;",
    "bell\x07nul\x00esc\x1b[31m": "bell␇nul␀esc␛[31m",
    "Müller 🎉 日本": "Müller 🎉 日本",
    "end": "end",
    "": "",
}


def named(name: str) -> Graph:
    """A graph with the name in a node, an edge and a note."""

    def pick(key: str):
        return {"x": one}[key]

    one = Agent(name=name)
    return agent_graph(Agent(name="Start", functions=[one, pick]))


@pytest.mark.parametrize(("name", "shown"), NAMES.items())
def test_no_name_breaks_mermaid(name: str, shown: str) -> None:
    """A name stays on its line and in its quotes, and Mermaid shows exactly this name."""
    text = named(name).mermaid()
    text.encode()
    node = text.splitlines()[2]
    label = re.fullmatch(r'    a2\["<b>([^"<>&`%:\\]*)</b>"\]', node)
    assert label
    assert re.sub(r"#(\d+);", lambda found: chr(int(found[1])), label[1]) == shown
    assert "%%{" not in text
    assert len(text.splitlines()) == 7


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize(("name", "shown"), NAMES.items())
def test_graphviz_shows_the_name(name: str, shown: str) -> None:
    """The real `dot` reads the graph, and draws exactly this name."""
    picture = rendered(named(name), "json")
    [node] = [node for node in picture["objects"] if node["name"] == "a2"]
    drawn = "".join(part["text"] for part in node.get("_ldraw_", []) if part["op"] == "T")
    assert drawn == shown
    assert len(picture["objects"]) == 2
    assert len(picture["edges"]) == 2


def rendered(graph: Graph, kind: str) -> Any:
    done = subprocess.run(["dot", f"-T{kind}"], input=graph.dot().encode(), capture_output=True, check=True)
    assert done.stderr == b""
    return json.loads(done.stdout)
