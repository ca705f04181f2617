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

HELLO: list[Json] = [{"role": "user", "content": "Hello"}]
SYSTEM: Json = {"role": "system", "content": "Be brief."}
CALLED: list[Json] = [
    *HELLO,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
]
STREAMED: Json = {"model": "nano", "stream": True, "stream_options": {"include_usage": True}}
OPEN_WEBUI: Json = {"stream": True, "model": "nano", "messages": HELLO}
OPEN_WEBUI_TITLE: Json = {"model": "nano", "messages": HELLO, "stream": False, "max_tokens": 100}
CONTINUE: Json = {
    "model": "nano",
    "messages": [SYSTEM, *HELLO],
    "max_tokens": 6,
    "stream": True,
    "stop": ["\n\n"],
    "tools": [function("read_file", filepath=TEXT)],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
}
CLINE: Json = {
    **STREAMED,
    "messages": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
    "temperature": 0,
    "tools": [function("execute_command", command=TEXT)],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
}
ZED: Json = {
    **STREAMED,
    "messages": [
        SYSTEM,
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        *CALLED[1:],
    ],
    "max_completion_tokens": 8,
    "temperature": 1.0,
    "parallel_tool_calls": False,
    "tools": [function("look", path=TEXT)],
    "stop": [],
}
LIBRECHAT: Json = {**STREAMED, "messages": HELLO, "user": "6650", "temperature": 0.7}
N8N: Json = {
    "model": "nano",
    "temperature": 0.7,
    "top_p": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "n": 1,
    "stream": False,
    "messages": CALLED,
    "tools": [function("look", path=TEXT)],
    "tool_choice": "auto",
}
HARDWARE: Json = {"num_gpu": 1, "num_thread": 4, "use_mmap": True, "num_batch": 512, "numa": False}
OLLAMA: Json = {"model": "nano:latest", "messages": HELLO, "stream": True}
OPEN_WEBUI_OLLAMA: Json = {**OLLAMA, "options": {"temperature": 0.8, "num_ctx": 2048}}
CONTINUE_OLLAMA: Json = {
    **OLLAMA,
    "options": {"temperature": 0.5, "num_predict": 6, "stop": ["\n\n"], "num_ctx": 4096},
    "keep_alive": 1800,
}
CONTINUE_FILL: Json = {
    "model": "nano",
    "prompt": "def f(",
    "suffix": "",
    "raw": True,
    "options": {"temperature": 0.01, "num_predict": 6, "stop": ["\n"]},
    "keep_alive": 1800,
    "stream": True,
}
ZED_OLLAMA: Json = {
    "model": "nano:latest",
    "messages": [
        *HELLO,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "look", "arguments": {"path": "a"}}}],
            "thinking": None,
        },
        {"role": "tool", "tool_name": "look", "content": "a.txt"},
    ],
    "stream": True,
    "keep_alive": -1,
    "options": {"num_ctx": 4096, "num_predict": -1, "stop": [], "temperature": 1.0, "top_p": None},
    "tools": [function("look", path=TEXT)],
    "think": False,
}
N8N_OLLAMA: Json = {
    **OLLAMA,
    "options": {**HARDWARE, "temperature": 0.7, "num_predict": 6, "num_ctx": 2048},
    "format": "json",
    "keep_alive": "5m",
}
CLINE_OLLAMA: Json = {**OLLAMA, "options": {"num_ctx": 32_768}, "tools": []}
LLAMA_CPP: Json = {
    "prompt": "Hello",
    "n_predict": 6,
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "stop": ["</s>"],
    "mirostat": 0,
    "cache_prompt": True,
    "stream": True,
}

_DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
_CITY: Json = {**_DRAFT_7, **schema(city={"type": "string", "enum": ["Oslo", "Lima"]})}
_SAFE = 2**53 - 1
_PERSON: Json = {
    **_DRAFT_7, **schema(name={"type": "string"},
    age={"type": "integer", "minimum": -_SAFE, "maximum": _SAFE}),
}  # fmt: skip
_WEATHER: Json = {"name": "weather", "description": "The weather of a city.", "parameters": _CITY}
AI_ASKED: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": "Weather in Oslo?"}]},
]
AI_RESPONSES: Json = {
    "model": "nano", "stream": True, "input": AI_ASKED, "max_output_tokens": 60, "tool_choice": "auto",
    "tools": [{"type": "function", **_WEATHER}],
}  # fmt: skip
AI_RESULT: Json = {
    **AI_RESPONSES,
    "input": [
        *AI_ASKED,
        {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": '{"degrees":3}'},
    ],
}
AI_OBJECT: Json = {
    "model": "nano", "stream": True, "input": AI_ASKED[1:], "max_output_tokens": 60,
    "text": {"format": {"type": "json_schema", "strict": True, "name": "r", "schema": _PERSON}},
}  # fmt: skip
AI_COMPATIBLE: Json = {
    "model": "nano", "stream": True, "stream_options": {"include_usage": True},
    "max_tokens": 60, "messages": HELLO, "tool_choice": "auto",
    "tools": [{"type": "function", "function": _WEATHER}],
}  # fmt: skip
_LANGCHAIN_SETTINGS: Json = {"model": "nano", "max_completion_tokens": 60, "temperature": 0.0}
LANGCHAIN_TOOL: Json = {
    **_LANGCHAIN_SETTINGS, "stream": True, "messages": HELLO, "tool_choice": "required",
    "tools": [{"type": "function", "function": {**_WEATHER, "strict": True}}],
}  # fmt: skip
LANGCHAIN_RESPONSE: Json = {
    "model": "nano", "stream": True, "max_output_tokens": 60, "temperature": 0.0,
    "input": [{"content": "Hello!", "role": "user", "type": "message"}],
}  # fmt: skip

_AI = "recorded: ai 6.0.326, @ai-sdk/openai 3.0.141, @ai-sdk/openai-compatible 2.0.92"
_LANGCHAIN_PYTHON = "recorded: langchain-openai 1.7.4"
_ZED = "zed-industries/zed, crates/ollama and crates/open_ai"
_WEBUI = "open-webui/open-webui, backend/open_webui/routers"
_CONTINUE = "continuedev/continue, core/llm/llms/Ollama.ts and packages/openai-adapters"
_CLINE = "cline/cline, src/core/api/providers"
_LANGCHAIN = "n8n-io/n8n, by langchain-ai/langchainjs"
CHAT, OLLAMA_CHAT = "/v1/chat/completions", "/api/chat"

REQUESTS = (
    Recorded("Vercel AI", _AI, "/v1/responses", AI_RESPONSES),
    Recorded("Vercel AI, a result", _AI, "/v1/responses", AI_RESULT),
    Recorded("Vercel AI, an object", _AI, "/v1/responses", AI_OBJECT),
    Recorded("Vercel AI, compatible", _AI, "/v1/chat/completions", AI_COMPATIBLE),
    Recorded("LangChain, a tool", _LANGCHAIN_PYTHON, "/v1/chat/completions", LANGCHAIN_TOOL),
    Recorded("LangChain, a stream", _LANGCHAIN_PYTHON, "/v1/responses", LANGCHAIN_RESPONSE),
    Recorded("open webui models", _WEBUI, "/v1/models"),
    Recorded("open webui", _WEBUI, CHAT, OPEN_WEBUI),
    Recorded("open webui title", _WEBUI, CHAT, OPEN_WEBUI_TITLE),
    Recorded("continue", _CONTINUE, CHAT, CONTINUE),
    Recorded("cline", _CLINE, CHAT, CLINE),
    Recorded("zed", _ZED, CHAT, ZED),
    Recorded("librechat", "danny-avila/LibreChat, api/app/clients", CHAT, LIBRECHAT),
    Recorded("n8n", _LANGCHAIN, CHAT, N8N),
    Recorded("open webui tags", _WEBUI, "/api/tags"),
    Recorded("open webui ps", _WEBUI, "/api/ps"),
    Recorded("open webui version", _WEBUI, "/api/version"),
    Recorded("open webui", _WEBUI, OLLAMA_CHAT, OPEN_WEBUI_OLLAMA),
    Recorded("continue", _CONTINUE, "/api/show", {"name": "nano"}),
    Recorded("continue", _CONTINUE, OLLAMA_CHAT, CONTINUE_OLLAMA),
    Recorded("continue", _CONTINUE, "/api/generate", CONTINUE_FILL),
    Recorded("zed", _ZED, "/api/show", {"model": "nano:latest"}),
    Recorded("zed", _ZED, OLLAMA_CHAT, ZED_OLLAMA),
    Recorded("cline", _CLINE, OLLAMA_CHAT, CLINE_OLLAMA),
    Recorded("n8n", _LANGCHAIN, OLLAMA_CHAT, N8N_OLLAMA),
    Recorded("llama.cpp", "ggml-org/llama.cpp, tools/server/README.md", "/completion", LLAMA_CPP),
    Recorded("llama.cpp", "ggml-org/llama.cpp, tools/server/README.md", "/props"),
    Recorded("llama.cpp", "ggml-org/llama.cpp, tools/server/README.md", "/slots"),
    Recorded("llama.cpp", "ggml-org/llama.cpp, tools/server/README.md", "/health"),
    Recorded("codex", "codex-cli 0.171.0, recorded", "/v1/responses", CODEX),
    Recorded("codex later", "openai/codex, codex-rs/protocol", "/v1/responses", CODEX_LATER),
    Recorded("claude", "Claude Code 2.1.197, recorded", "/v1/messages?beta=true", CLAUDE_CODE),
    Recorded("claude later", "Anthropic's reference", "/v1/messages?beta=true", CLAUDE_CODE_LATER),
    Recorded("codex models", "codex-cli 0.171.0, recorded", "/v1/models"),
)
