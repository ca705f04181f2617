"""Chat templates that write calls of tools as known families of models do, each as short as that
goes.
"""

from __future__ import annotations

_NATIVE = """
{%- if tools %}<|tools|>{{ tools | tojson }}<|end|>{% endif -%}
{%- for m in messages -%}
<|{{ m['role'] }}|>{{ m['content'] or '' }}
{%- if m['tool_calls'] %}CALLS{% endif %}<|end|>
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif -%}
"""
_EACH = "{% for c in m['tool_calls'] %}{% set f = c['function'] %}"
_KEYED = "{% for k, v in f['arguments'] | items %}"
_JSON = "{{ f['arguments'] | tojson }}"
_COMMA = "{% if not loop.last %}, {% endif %}"
_NINE = "{% if c['id'] | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}"


def native(calls: str) -> str:
    """A template whose answers with calls are written by this piece of Jinja."""
    return _NATIVE.strip().replace("CALLS", calls)


FAMILIES = {
    "hermes": _EACH
    + "<tool_call>\n"
    + '{"name": "{{ f[\'name\'] }}", "arguments": '
    + _JSON
    + "}\n</tool_call>{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}",
    "llama": "{% if m['tool_calls'] | length > 1 %}{{ raise_exception('one call at a time') }}"
    + "{% endif %}"
    + _EACH
    + '{"name": "{{ f[\'name\'] }}", "parameters": '
    + _JSON
    + "}{% endfor %}",
    "mistral": "[TOOL_CALLS] ["
    + _EACH
    + _NINE
    + '{"name": "{{ f[\'name\'] }}", "arguments": '
    + _JSON
    + ', "id": "{{ c[\'id\'] }}"}'
    + _COMMA
    + "{% endfor %}]",
    "devstral": _EACH + "[TOOL_CALLS]{{ f['name'] }}[ARGS]" + _JSON + "{% endfor %}",
    "deepseek": "<｜calls▁begin｜>"
    + _EACH
    + "<｜call▁begin｜>function<｜sep｜>{{ f['name'] }}\n```json\n{{ f['arguments'] + '' }}\n```"
    + "<｜call▁end｜>{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}<｜calls▁end｜>",
    "glm": _EACH
    + "\n<tool_call>{{ f['name'] }}\n"
    + _KEYED
    + "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n"
    + "{% endfor %}</tool_call>{% endfor %}",
    "coder": _EACH
    + "\n<tool_call>\n<function={{ f['name'] }}>\n"
    + _KEYED
    + "<parameter={{ k }}>\n"
    + "{{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }}\n"
    + "</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}",
    "dsml": "<DSML|calls>\n"
    + _EACH
    + "<DSML|invoke name=\"{{ f['name'] }}\">\n"
    + _KEYED
    + "<DSML|parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">"
    + "{{ v if v is string else v | tojson }}</DSML|parameter>\n{% endfor %}"
    + "</DSML|invoke>\n{% endfor %}</DSML|calls>",
    "gemma": _EACH
    + "<|call>call:{{ f['name'] }}{{ '{' }}"
    + _KEYED
    + "{{ k }}:{{ '<|\"|>' + v + '<|\"|>' if v is string else v }}"
    + "{% if not loop.last %},{% endif %}{% endfor %}}<call|>{% endfor %}",
    "kimi": "<|section_begin|>"
    + _EACH
    + "<|call_begin|>functions.{{ f['name'] }}:{{ loop.index0 }}<|argument_begin|>"
    + _JSON
    + "<|call_end|>{% endfor %}<|section_end|>",
    "command": "<|START_ACTION|>["
    + _EACH
    + '\n    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f[\'name\'] }}", "parameters": '
    + _JSON
    + "}{% if not loop.last %},{% endif %}{% endfor %}\n]<|END_ACTION|>",
    "functionary": _EACH + "<function={{ f['name'] }}>" + _JSON + "</function>{% endfor %}",
    "harmony": "{% set f = m['tool_calls'][0]['function'] %} to=functions.{{ f['name'] }}"
    + "<|channel|>commentary json<|message|>"
    + _JSON
    + "<|call|>",
}
"""By family, the piece of Jinja that writes an answer's calls."""

ENDS = ("<|end|>", "<|call|>")
