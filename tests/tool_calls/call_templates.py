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
}
"""By family, the piece of Jinja that writes an answer's calls."""

CHANNELS = """
{%- macro message(head, text, end='<|end|>') -%}
<|start|>{{ head }}<|message|>{{ text }}{{ end }}
{%- endmacro -%}
{{- message('system', 'Reasoning: ' ~ (reasoning_effort or 'medium')
    ~ '\n\n# Valid channels: analysis, commentary, final.') -}}
{%- set rest = messages -%}
{%- set said = namespace(text='', called='') -%}
{%- if messages and messages[0].role in ('system', 'developer') -%}
  {%- set said.text = '# Instructions\n\n' ~ messages[0].content ~ '\n\n' -%}
  {%- set rest = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
  {%- set said.text = said.text ~ '# Tools\n\n' -%}
  {%- for tool in tools -%}
    {%- set said.text = said.text ~ '// ' ~ tool.function.description ~ '\ntype '
        ~ tool.function.name ~ ' = (_: ' ~ tool.function.parameters | tojson ~ ') => any;\n' -%}
  {%- endfor -%}
{%- endif -%}
{%- if said.text -%}{{- message('developer', said.text) -}}{%- endif -%}
{%- for m in rest -%}
  {%- if m.role == 'user' -%}
    {{- message('user', m.content) -}}
  {%- elif m.role == 'tool' -%}
    {%- if not said.called -%}{{- raise_exception('a result without a call') -}}{%- endif -%}
    {{- message('functions.' ~ said.called ~ ' to=assistant<|channel|>commentary',
        m.content | tojson) -}}
  {%- elif m.tool_calls -%}
    {%- set call = m.tool_calls[0].function -%}
    {%- if m.content and m.thinking -%}
      {{- raise_exception('content and thinking before a call') -}}
    {%- elif m.content or m.thinking -%}
      {{- message('assistant<|channel|>analysis', m.content or m.thinking) -}}
    {%- endif -%}
    {{- message('assistant to=functions.' ~ call.name ~ '<|channel|>commentary json',
        call.arguments | tojson, '<|call|>') -}}
    {%- set said.called = call.name -%}
  {%- else -%}
    {%- set is_last = loop.last and not add_generation_prompt -%}
    {%- if is_last and m.thinking -%}
      {{- message('assistant<|channel|>analysis', m.thinking) -}}
    {%- endif -%}
    {{- message('assistant<|channel|>final', m.content, '<|return|>' if is_last else '<|end|>') -}}
    {%- set said.called = '' -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
""".strip()
"""As gpt-oss's models expect a conversation: messages in channels."""

ENDS = ("<|end|>", "<|call|>")
