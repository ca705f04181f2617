"""What popular clients send in their first minute, shortened: the fields and their shapes are theirs,
the texts are not.

`source` says where a request comes from: the version that was recorded on its way to a server, or
the file of the client's repository that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """One request. `body` None: a GET."""

    client: str
    source: str
    path: str
    body: Json | None = None

    def __str__(self) -> str:
        return f"{self.client} {self.path}"


def schema(**properties: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:1],
        "additionalProperties": False,
    }


TEXT: Json = {"type": "string", "description": "A text."}


def flat(name: str, **properties: Any) -> Json:
    """A function as `/v1/responses` has it."""
    described = {"type": "function", "name": name, "description": "Does it.", "strict": False}
    return {**described, "parameters": schema(**properties)}


def function(name: str, **properties: Any) -> Json:
    """A function as chats have it."""
    described = {"name": name, "description": "Does it.", "parameters": schema(**properties)}
    return {"type": "function", "function": described}


def part(role: str, *texts: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text} for text in texts]
    return {"type": "message", "id": f"msg_{role}", "role": role, "content": content}


CODEX_TOOLS: list[Json] = [
    flat("exec_command", cmd=TEXT, workdir=TEXT, yield_time_ms={"type": "number"}),
    flat("write_stdin", session_id={"type": "number"}, chars=TEXT),
    {
        "type": "namespace",
        "name": "multi_agent_v1",
        "description": "Other agents.",
        "tools": [flat("close_agent", target=TEXT), flat("spawn_agent", message=TEXT)],
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'},
    },
    {"type": "web_search", "external_web_access": False},
]
CODEX: Json = {
    "model": "nano",
    "stream": True,
    "instructions": "You are a coding agent.",
    "input": [
        part("developer", "Some instructions.", "Some permissions."),
        part("user", "<cwd>/home</cwd>"),
        part("user", "Say hello"),
    ],
    "tools": CODEX_TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2",
    "client_metadata": {"session_id": "01a2"},
}
CODEX_LATER: Json = {
    **CODEX,
    "input": [
        *CODEX["input"],
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
        {
            "type": "function_call",
            "name": "close_agent",
            "namespace": "multi_agent_v1",
            "arguments": '{"target": "a"}',
            "call_id": "c2",
        },
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "closed"}],
        },
        {"type": "custom_tool_call", "name": "apply_patch", "input": "a", "call_id": "c3"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
        {
            "type": "local_shell_call",
            "call_id": "c4",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": None, "timeout_ms": None},
        },
        {"type": "local_shell_call_output", "call_id": "c4", "output": "a.txt"},
        part("assistant", "There is a.txt."),
        part("user", "And now?"),
    ],
}
CLAUDE_CODE: Json = {
    "model": "nano",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>A date.</system-reminder>"},
                {"type": "text", "text": "Say hello", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "system", "content": "Available agents: none."},
    ],
    "system": [
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}
    ],
    "tools": [
        {"name": "Bash", "description": "Runs it.", "input_schema": schema(command=TEXT)},
        {"name": "Workflow", "description": "d" * 18_780, "input_schema": schema(script=TEXT)},
    ],
    "metadata": {"user_id": "{}"},
    "max_tokens": 32_000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
CLAUDE_CODE_LATER: Json = {
    **CLAUDE_CODE,
    "messages": [
        CLAUDE_CODE["messages"][0],
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "a.txt", "is_error": False}
            ],
        },
    ],
    "tools": [
        {**CLAUDE_CODE["tools"][0], "cache_control": {"type": "ephemeral"}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"type": "mcp_toolset", "mcp_server_name": "some"},
    ],
    "thinking": {"type": "enabled", "budget_tokens": 31_999},
}

REQUESTS = (
    Recorded("codex", "codex-cli 0.171.0, recorded", "/v1/responses", CODEX),
    Recorded("codex later", "openai/codex, codex-rs/protocol", "/v1/responses", CODEX_LATER),
    Recorded("claude", "Claude Code 2.1.197, recorded", "/v1/messages?beta=true", CLAUDE_CODE),
    Recorded("claude later", "Anthropic's reference", "/v1/messages?beta=true", CLAUDE_CODE_LATER),
    Recorded("codex models", "codex-cli 0.171.0, recorded", "/v1/models"),
)
