"""`speculative_prefill`: what the next turn of a chat begins with is there before it is asked."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from lmprog import wire
from lmprog.runtime.programs.early_texts import NextTurns
from lmprog.server.openai.chat_completions import Chat
from lmprog.server.openai.messages import ChatMessage
from lmprog.server.openai.tools import ChatTool, toolbox
from tests.server.fake_runtime import Fake, asking

ASKED = [{"role": "user", "content": "what is there to be said of the sea, and of all in it?"}]
HINTS = {"agent_hints": {"speculative_prefill": True}}


@pytest.mark.parametrize("stream", [False, True])
def test_the_runtime_hears_how_a_chat_goes_on_once_its_answer_has_ended(
    fake: Fake, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[wire.Conversation]()
    monkeypatch.setattr(NextTurns, "expect", lambda _, _branch, following: heard.append(following))
    body = {
        "messages": ASKED,
        "structured_outputs": {"choice": ["salt and deep"]},
        "stream": stream,
    }

    async def run() -> None:
        async with asking(fake) as (client, _):
            for more in (
                {},
                {"max_tokens": 2, "structured_outputs": None},
                {"n": 2},
                {"max_tokens": 40},
            ):
                nvext = HINTS if more else {}
                asked = {**body, **more, "nvext": nvext}
                answer = await client.post("/v1/chat/completions", json=asked)
                assert answer.status_code == 200, answer.text
                assert "warning" not in answer.headers

            for _ in range(1000):  # the branches are closed behind the answers
                await asyncio.sleep(0.0 if heard else 0.01)

    asyncio.run(run())
    (following,) = heard
    assert json.loads(following.messages) == [
        *ASKED,
        {"role": "assistant", "content": "salt and deep"},
        {"role": "user", "content": wire.UNSAID},
    ]


def test_what_follows_a_call_is_the_tools_result_and_thoughts_are_not_sent_back() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    support = wire.ToolSupport(writes_calls=True, takes_results=True)
    box = toolbox([msgspec.convert(tool, ChatTool)], "auto", True, support)
    said = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    output = wire.Output(text=said, finish="stop", tokens=())
    chat = Chat([ChatMessage("user", "x")], {})
    *_, answer, follower = json.loads(chat.following(box, output).messages)
    assert answer["tool_calls"][0]["function"]["name"] == "look"
    assert (follower["role"], follower["content"]) == ("tool", wire.UNSAID)
    assert follower["tool_call_id"] == answer["tool_calls"][0]["id"]
    text = wire.Output(text="it is so", finish="stop", tokens=())
    *_, answer, follower = json.loads(chat.following(box, text).messages)
    assert (answer["content"], "tool_calls" in answer) == ("it is so", False)
    assert follower == {"role": "user", "content": wire.UNSAID}
