"""LangGraph's ReAct loop, as it is installed, on `lmprog serve`: the call validates, the tool runs, and
the model is shown what it gave.

Runs where the extra `recipes` is installed; the recipe is in docs/server.md.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import pytest

os.environ.setdefault("LANGSMITH_TRACING", "false")
prebuilt: Any = pytest.importorskip("langgraph.prebuilt")
langchain_openai: Any = pytest.importorskip("langchain_openai")
chat: Any = pytest.importorskip("langchain_core.messages")

from tests.server.process import served  # noqa: E402


@pytest.mark.filterwarnings("ignore")
def test_the_loop_calls_a_tool_with_valid_arguments_and_ends_with_an_answer() -> None:
    asked: list[str] = []

    def look_up(name: Literal["Mia", "Ben"]) -> str:
        """What the notes say of a person."""
        asked.append(name)
        return f"{name} lives in Oslo."

    with served() as server:
        model = langchain_openai.ChatOpenAI(
            model="nano", base_url=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=128
        )

        def choose(state: dict[str, Any], runtime: object) -> Any:
            """A small model is told when to call; a larger one needs no `tool_choice`."""
            is_told = any(isinstance(message, chat.ToolMessage) for message in state["messages"])
            return model.bind_tools([look_up], tool_choice="none" if is_told else "required")

        loop = prebuilt.create_react_agent(choose, [look_up])
        question = {"messages": [("user", "Where does Mia live?")]}
        messages = loop.invoke(question, {"recursion_limit": 6})["messages"]
    called, told, answer = messages[1:]
    assert [call["name"] for call in called.tool_calls] == ["look_up"] * len(asked)
    assert asked[0] in ("Mia", "Ben")
    assert isinstance(told, chat.ToolMessage)
    assert told.content == f"{asked[0]} lives in Oslo."
    assert isinstance(answer, chat.AIMessage)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0
