"""Finds the form of tool calls in a checkpoint's own chat template.

The template renders an answer with calls whose names, ids and arguments are sentinels: one call,
two, arguments of several types. What stands between the sentinels is the form. A form is taken only
if it writes other answers (three calls, arguments of every type) exactly as the template does, and
these are read back. Otherwise, and where the template leaves calls out, the form is one of
`tool_calls/known_forms`. A template that puts answers into channels is known by them
(`tool_calls/harmony`). In the same way it is found what stands around a thought.

Knows templates and forms; knows no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from lmprog import wire
from lmprog.errors import LmprogError, NotSupported
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.tool_calls.harmony import FINAL, HARMONY
from lmprog.tool_calls.known_forms import known_form_of
from lmprog.tool_calls.lexemes import common_end, common_start, is_tag, lexemes
from lmprog.tool_calls.quoting import thought_tags
from lmprog.tool_calls.reading import calls_in
from lmprog.tool_calls.writing import WrittenCall, as_json, written

_USER, _ANSWER, _RESULT = "QZUSERQZ", "QZANSWERQZ", "QZRESULTQZ"
_NAMES = ("qzfirst", "qzsecond", "qzthird")
_IDS = ("QZIDAAAA1", "QZIDBBBB2", "QZIDCCCC3")
"""Nine letters and digits: some templates accept no others."""
_LONG_ID = "call_0123456789abcdef01234567"
_KEY, _OTHER_KEY, _VALUE, _OTHER_VALUE, _NUMBER = "qzkey", "qzsome", "qzvalue", "qzmore", 731_952
_TYPED: tuple[dict[str, Any], ...] = (
    {"qztext": 'a "b" <c\n \\ d', "qzlist": [1, {"qzin": "x y"}, True], "qzno": None, "qzb": False},
    {"qzlist": [1, {"qzin": "x y"}], "qznumber": -2.5, "qztext": 'a "b" <c\n \\ d'},
    {"qznumber": -2.5, "qztext": 'a "b" <c\n \\ d'},
    {"qznumber": -2.5, "qztext": "a b"},
)
"""Arguments that a form must write as the template does; less where the template has a spelling of
its own for true, false and null, or for lists and objects: those are read, too."""


def tool_support(template: ChatTemplate, ends: Sequence[str] = ()) -> wire.ToolSupport:
    """How this template's model calls tools. `ends` are the names of the tokens that end an
    answer.
    """
    view = _View(template, tuple(filter(None, ends)))
    lists_tools = view.says(_NAMES[0])
    dialect, form = "", None
    for view.as_text, view.content in product((False, True), ("", None)):
        form = view.form()
        if form is not None:
            break
    writes_calls = form is not None
    if view.writes_channels():
        form = HARMONY
    takes_results = view.takes_results(writes_calls)
    if form is None:
        dialect, form = known_form_of(template.source if lists_tools else "")
    return wire.ToolSupport(
        form=form,
        dialect=dialect,
        lists_tools=lists_tools,
        writes_calls=writes_calls,
        takes_results=takes_results,
        arguments_as_text=writes_calls and view.as_text,
        short_ids=writes_calls and view.answer([_call(0, {})], ids=(_LONG_ID,)) is None,
        opens_results=takes_results and _opens_results(template),
        thought=wire.ThoughtForm() if form.harmony else _thought_form(template),
    )


_SWITCHES = ("enable_thinking", "thinking", "reasoning")
"""Names by which templates let thoughts be turned on and off."""
_THOUGHT = "QZTHOUGHTQZ"


def _thought_form(template: ChatTemplate) -> wire.ThoughtForm:
    """What the template writes around a thought, and how it leaves a prompt: a thought is rendered
    as one of an earlier answer; else the tags are those that stand open at the end of a prompt, or
    that the template's source names.
    """
    written = _written(template, {})
    if written is None:
        return wire.ThoughtForm()
    prompt = _prompt(written)
    opening = thought_tags("".join(lexemes(prompt)[-8:]))
    tags = _written_around(template, prompt) or opening or thought_tags(template.source)
    if tags is None:
        return wire.ThoughtForm()
    form = wire.ThoughtForm(*tags, prompt=_state(prompt, *tags))
    for switch in _SWITCHES:
        on, off = (_written(template, {switch: value}) for value in (True, False))
        if switch in template.variables and on is not None and off is not None and on != off:
            return form.switched(switch, *(_state(_prompt(one), *tags) for one in (on, off)))
    return form


def _written(template: ChatTemplate, variables: Mapping[str, object]) -> str | None:
    """A question, up to where its answer begins; None where the template refuses."""
    try:
        whole = template.render([{"role": "user", "content": _USER}], True, variables)
    except NotSupported:
        return None
    return whole if _USER in whole else None


def _prompt(written: str) -> str:
    """What stands between a question and its answer."""
    return written.rpartition(_USER)[2]


def _state(prompt: str, begin: str, end: str) -> wire.ThoughtState:
    text = prompt.rstrip()
    return "open" if text.endswith(begin) else "closed" if text.endswith(end) else "free"


def _written_around(template: ChatTemplate, prompt: str) -> tuple[str, str] | None:
    """The texts that begin and end a thought which is rendered before its answer, or its call: some
    templates keep thoughts only there.
    """
    call = {"name": _NAMES[0], "arguments": {_KEY: _VALUE}}
    calls = [{"type": "function", "id": _IDS[0], "function": call}]
    for answer, more in ((_ANSWER, {}), ("", {"tool_calls": calls})):
        for field in ("reasoning_content", "thinking", "reasoning"):
            turn = {"role": "assistant", "content": answer, field: _THOUGHT, **more}
            try:
                whole = template.render([{"role": "user", "content": _USER}, turn], False)
            except NotSupported:
                continue
            before, found, after = whole.rpartition(_USER)[2].partition(_THOUGHT)
            behind, is_there, _ = after.partition(answer or _NAMES[0])
            is_there = found and is_there
            tags = _tags_around(lexemes(before), lexemes(behind)) if is_there else None
            if tags is not None:
                begin, _ = tags
                is_turns = prompt.strip().startswith(begin) and thought_tags(begin) is None
                return None if is_turns else tags
    return None


def _tags_around(before: list[str], behind: list[str]) -> tuple[str, str] | None:
    """The last tag before a thought, with what stands between them, and the first tag behind it. A
    tag may be a word between two: `<|open|>think<|sep|>`.
    """
    places = [place for place, lexeme in enumerate(before) if is_tag(lexeme)]
    ends = [place for place, lexeme in enumerate(behind) if is_tag(lexeme)]
    if not places or not ends:
        return None
    first, last = places[-1], ends[0]
    if _is_framed(before[first - 2 : first + 1]) and _is_framed(behind[last : last + 3]):
        first, last = first - 2, last + 2
    return "".join(before[first:]).strip(), "".join(behind[ends[0] : last + 1])


def _is_framed(parts: list[str]) -> bool:
    return len(parts) == 3 and [is_tag(one) for one in parts] == [True, False, True]


def _opens_results(template: ChatTemplate) -> bool:
    """Whether a conversation can grow by turns of the role `tool`: one, two, and an answer."""
    roles = ("user", "assistant", "tool", "tool", "assistant")
    messages = [{"role": role} for role in roles]
    try:
        for place in range(2, len(roles)):
            template.begin(messages[:place], roles[place])
    except LmprogError:
        return False
    return True


class _Frame(NamedTuple):
    """What repeated things have around them: `begin`, `head`, thing, `tail`, `between`, `end`."""

    begin: str
    head: str
    between: str
    tail: str
    end: str


def _frame(before: str, middle: str, after: str) -> _Frame:
    """Of the texts before the first of two things, between them, and after the last one."""
    tail = common_start(middle, after)
    head = common_end(before, middle[len(tail) :])
    between = middle[len(tail) : len(middle) - len(head)]
    return _Frame(before[: len(before) - len(head)], head, between, tail, after[len(tail) :])


def _call(number: int, arguments: dict[str, Any]) -> WrittenCall:
    return WrittenCall(_NAMES[number], arguments, _IDS[number])


class _View:
    """One template, asked for answers with calls."""

    def __init__(self, template: ChatTemplate, ends: tuple[str, ...]) -> None:
        self._template = template
        self._ends = ends
        self.as_text = False
        """Whether arguments are given as JSON text."""
        self.content: str | None = ""
        """Of an answer with calls."""

    def _render(self, *turns: dict[str, object]) -> str | None:
        parameters = {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "some text"}},
            "required": [_KEY],
        }
        about = [
            {"name": name, "description": f"About {name}.", "parameters": parameters}
            for name in _NAMES
        ]
        tools = [{"type": "function", "function": one} for one in about]
        user = {"role": "user", "content": _USER}
        try:
            return self._template.render([user, *turns], False, {"tools": tools})
        except NotSupported:
            return None

    def writes_channels(self) -> bool:
        plain = self._render({"role": "assistant", "content": _ANSWER})
        return plain is not None and plain.partition(_ANSWER)[0].endswith(FINAL)

    def says(self, text: str) -> bool:
        """Whether the tools' own text is written."""
        whole = self._render()
        return whole is not None and text in whole

    def takes_results(self, with_call: bool) -> bool:
        """Whether a turn of the role `tool` is written after an answer that calls."""
        turn = self._turn([_call(0, {_KEY: _VALUE})], _IDS)
        if not with_call:
            turn = {"role": "assistant", "content": _ANSWER}
        result: dict[str, object] = {
            "role": "tool",
            "content": _RESULT,
            "tool_call_id": _IDS[0],
            "name": _NAMES[0],
        }
        return _RESULT in (self._render(turn, result) or "")

    def _turn(self, calls: Sequence[WrittenCall], ids: Sequence[str]) -> dict[str, object]:
        made = [
            {
                "type": "function",
                "id": id_,
                "function": {
                    "name": call.name,
                    "arguments": as_json(call.arguments) if self.as_text else call.arguments,
                },
            }
            for call, id_ in zip(calls, ids, strict=False)
        ]
        return {"role": "assistant", "content": self.content, "tool_calls": made}

    def answer(self, calls: Sequence[WrittenCall], ids: Sequence[str] = _IDS) -> str | None:
        """The text of an answer that makes these calls, without what stands around any answer; None
        where the template refuses or leaves out a call.
        """
        whole = self._render(self._turn(calls, ids))
        plain = self._render({"role": "assistant", "content": _ANSWER})
        if whole is None or plain is None or _ANSWER not in plain or _USER not in whole:
            return None
        if not all(call.name in whole.rpartition(_USER)[2] for call in calls):
            return None
        opening, _, closing = plain.rpartition(_USER)[2].partition(_ANSWER)
        text = whole.rpartition(_USER)[2]
        text = text[len(common_start(opening, text)) :]
        text = text[: len(text) - len(common_end(text, closing))]
        tags = [lexeme for lexeme in lexemes(closing) if is_tag(lexeme)][:1]
        for end in (*self._ends, *tags):
            text = text.partition(end)[0]
        return text

    def form(self) -> wire.CallForm | None:
        """None where the template hides it."""
        one = self.answer([_call(0, {_KEY: _VALUE})])
        if one is None or _KEY not in one:
            return None
        two = self.answer([_call(0, {_KEY: _VALUE}), _call(1, {_OTHER_KEY: _OTHER_VALUE})])
        keyed = None if _json_span(one) else self._keyed()
        if keyed is None and not _json_span(one):
            return None
        form = _form(one, two, keyed)
        if form is None:
            return None
        form = _from_last_tag(form)
        return form if self._proves(form) else None

    def _keyed(self) -> _Keyed | None:
        """How arguments are written that are no JSON object."""
        some: list[dict[str, Any]] = [
            {_KEY: _VALUE},
            {_KEY: _VALUE, _OTHER_KEY: _OTHER_VALUE},
            {_KEY: _NUMBER},
        ]
        texts = [self.answer([_call(0, arguments)]) for arguments in some]
        sought = ((_KEY, _VALUE), (_KEY, _VALUE, _OTHER_KEY, _OTHER_VALUE), (_KEY, str(_NUMBER)))
        cut = [_cut(text or "", words) for text, words in zip(texts, sought, strict=True)]
        if not all(cut):
            return None
        (before, value_of, after), (_, _, middle, _, _), (other_before, other_of, other_after) = cut
        frame = _frame(before, middle, after)
        other = wire.KeyedValue(
            other_before.removeprefix(frame.begin), other_of, other_after.removesuffix(frame.end)
        )
        string = wire.KeyedValue(frame.head, value_of, frame.tail)
        quoted = value_of.endswith('"') and frame.tail.startswith('"') and string != other
        arguments = wire.KeyedArguments(string, other, frame.between, quoted)
        return _Keyed(arguments, frame.begin, frame.end)

    def _proves(self, form: wire.CallForm) -> bool:
        """Whether the form writes and reads further answers as the template has them."""
        for typed in _TYPED if form.keyed is not None else _TYPED[:1]:
            one, last = _call(0, typed), _call(2, {_KEY: "a, b"})
            if not form.is_parallel:
                if self._is_written(form, [one]):
                    return True
                continue
            # without arguments some have a line more, and one call alone may lack the end
            if any(self._is_written(form, [one, *none, last]) for none in ([_call(1, {})], [])):
                return self._is_written(form, [one]) or self._lacks_end(form, one)
        return False

    def _lacks_end(self, form: wire.CallForm, call: WrittenCall) -> bool:
        """Whether one call is written as several are, but for the text behind them all."""
        whole = wire.CallForm(form.literals, form.slots, form.begin, form.between, keyed=form.keyed)
        return bool(form.end) and self._is_written(whole, [call])

    def _is_written(self, form: wire.CallForm, calls: list[WrittenCall]) -> bool:
        text, found = written(form, calls), self.answer(calls) or ""
        if form.keyed is None:  # JSON may be laid out otherwise
            is_found = _squeezed(found).endswith(_squeezed(text))
        else:
            is_found = found.rstrip().endswith(text.strip())
        if not is_found:
            return False
        tools: dict[str, Mapping[str, Any]] = {
            name: {"properties": {"qztext": {"type": "string"}, _KEY: {"type": "string"}}}
            for name in _NAMES
        }
        read = [(call.name, json.loads(call.arguments)) for call in calls_in(form, text, tools)]
        return read == [(call.name, call.arguments) for call in calls]


def _squeezed(text: str) -> str:
    """Without white space."""
    return "".join(text.split())


class _Keyed(NamedTuple):
    """Arguments one by one, and the texts before and behind them all."""

    arguments: wire.KeyedArguments
    begin: str
    end: str


def _cut(text: str, words: Sequence[str]) -> list[str]:
    """The texts around the words, in this order; none where one is missing."""
    parts = []
    for word in words:
        before, found, text = text.partition(word)
        if not found:
            return []
        parts.append(before)
    return [*parts, text]


def _json_span(text: str, key: str = _KEY, value: str = _VALUE) -> tuple[int, int] | None:
    """Where arguments of one sentinel stand as a JSON object."""
    begin = text.rfind("{", 0, max(0, text.find(f'"{key}"')))
    try:
        found, end = json.JSONDecoder().raw_decode(text, begin) if begin >= 0 else (None, 0)
    except ValueError:
        return None
    return (begin, end) if found == {key: value} else None


def _form(one: str, two: str | None, keyed: _Keyed | None) -> wire.CallForm | None:
    """The form of the answers with one call and with two; no `two`: one call is the most."""
    first = _sentinels(one, (0,), keyed)
    both = _sentinels(two, (0, 1), keyed) if two is not None else None
    if first is None:
        return None
    slots = first.slots
    if both is None or both.slots != (*slots, *slots):
        return wire.CallForm(first.literals, slots, keyed=_of(keyed), is_parallel=False)
    count = len(slots)
    literals, slots, both_literals = _indexed(first.literals, slots, both.literals)
    count = len(slots)
    frame = _frame(literals[0], both_literals[count], both_literals[-1])
    return wire.CallForm(
        literals=(frame.head, *literals[1:-1], frame.tail),
        slots=slots,
        begin=frame.begin,
        between=frame.between,
        end=frame.end,
        keyed=_of(keyed),
    )


def _from_last_tag(form: wire.CallForm) -> wire.CallForm:
    """Without what stands before the tag that opens the calls: an empty thought, say."""
    parts = lexemes(form.begin)
    tags = [place for place, lexeme in enumerate(parts) if is_tag(lexeme)]
    begin = "".join(parts[tags[-1] :]) if tags else form.begin.lstrip()
    return wire.CallForm(
        form.literals, form.slots, begin, form.between, form.end, form.keyed, form.is_parallel
    )


def _of(keyed: _Keyed | None) -> wire.KeyedArguments | None:
    return None if keyed is None else keyed.arguments


class _Slotted(NamedTuple):
    """An answer cut at its sentinels."""

    literals: tuple[str, ...]
    slots: tuple[wire.CallSlot, ...]


def _sentinels(text: str, numbers: Sequence[int], keyed: _Keyed | None) -> _Slotted | None:
    """Cuts an answer with the calls of these numbers, each with one argument."""
    spans: list[tuple[int, int, wire.CallSlot]] = []
    values = ((_KEY, _VALUE), (_OTHER_KEY, _OTHER_VALUE))
    for number in numbers:
        key, value = values[number]
        if keyed is None:
            span = _json_span(text, key, value)
            whole = as_json({key: value}) if span is None else text[slice(*span)]
        else:
            around = keyed.arguments.string
            whole = around.before_key + key + around.before_value + value + around.after_value
        sought: tuple[tuple[str, wire.CallSlot], ...] = (
            (_NAMES[number], "name"),
            (whole, "arguments"),
            (_IDS[number], "id"),
        )
        for word, slot in sought:
            at = text.find(word)
            if at >= 0:
                spans.append((at, at + len(word), slot))
            elif slot != "id":
                return None
    spans.sort()
    borders = [0, *(border for begin, end, _ in spans for border in (begin, end)), len(text)]
    literals = [text[begin:end] for begin, end in zip(borders[::2], borders[1::2], strict=True)]
    return _Slotted(tuple(literals), tuple(slot for _, _, slot in spans))


def _indexed(
    literals: tuple[str, ...], slots: tuple[wire.CallSlot, ...], both: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[wire.CallSlot, ...], tuple[str, ...]]:
    """With the number of the call as a slot, where the literals count the calls."""
    count = len(slots)
    seconds = both[count:]
    for place, (first, second) in enumerate(zip(literals[:-1], seconds[:-1], strict=True)):
        end = common_end(first, second)
        left, right = first[: len(first) - len(end)], second[: len(second) - len(end)]
        if left.endswith("0") and right.endswith("1"):
            cut = (left[:-1], end)
            new_slots = (*slots[:place], "index", *slots[place:])
            made = (*literals[:place], *cut, *literals[place + 1 :])
            again = (right[:-1], end)
            at = count + place
            return (
                made,
                new_slots,
                (*both[:place], *cut, *both[place + 1 : at], *again, *both[at + 1 :]),
            )
    return literals, slots, both
