"""A call that an answer quotes runs nothing, in no form and no dialect; one that it makes does.

Ten thousand answers are drawn: forms of calls, in texts that quote them, read whole, in pieces, and
as services send them.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.blackbox.anthropic_backend import _Draft
from lmprog.backends.blackbox.openai_answer import Drafts
from lmprog.lang.ops.tool_calls import OfferedTools
from lmprog.lang.ops.tool_functions import ToolSet, checked_tools
from lmprog.server.openai.tools import FunctionTool, Toolbox
from lmprog.testing import Scripted
from lmprog.tool_calls.harmony import FINAL, HARMONY, MARKS
from lmprog.tool_calls.lexemes import is_tag, lexemes
from lmprog.tool_calls.quoting import QuotedPlaces
from lmprog.tool_calls.reading import ParsedCall
from lmprog.tool_calls.stream import CallStream, mark_of
from lmprog.tool_calls.writing import WrittenCall, written
from tests.tool_calls.test_call_stream import EVERY, form_of

NUM_ANSWERS = 10_000
SEED = 20_260_731
BY_LINE = ("indented lines", "lines of a mail", "a block in a list")
ran: list[str] = []


def delete_all(folder: str = "") -> str:
    """Deletes everything."""
    ran.append(folder)
    return "gone"


TOOLS = ToolSet(checked_tools([delete_all]))
FUNCTIONS = tuple(
    FunctionTool(shape.name, parameters=dict(shape.parameters)) for shape in TOOLS.shapes
)
TALK = [
    "",
    "I add them.",
    "The user's mail doesn't say why.\n",
    'It is called "Report", from the \'90s, on a 27" screen.\n',
    "If a < b and c > d, then `x` is **not** it.\n",
    "```python\nprint('a')\n```\n",
    "> Hello\n\nSo I thought:\n",
    "1. One\n2. Two\n\n",
    "<b>Bold</b>, <br> and “quoted”.\n",
    "日本 «so» 👍🏽\n",
]
QUOTED: dict[str, Callable[[str], str]] = {
    "a block of code": "```\n{}\n```".format,
    "a block with a language": "```xml\n{}\n```".format,
    "tildes": "~~~\n{}\n~~~".format,
    "a block in a list": "- look:\n  ```\n{}\n  ```".format,
    "backticks": "`{}`".format,
    "two backticks": "`` {} ``".format,
    "quotation marks": 'It says "{}" there.'.format,
    "a quotation of several paragraphs": 'It says: "Hello.\n\nPlease:\n{}\n\nBye."'.format,
    "typographic marks": "“{}”".format,
    "guillemets": "« {} »".format,
    "single marks": "'{}'".format,
    "three marks": '"""\n{}\n"""'.format,
    "a tag": "<mail>\n{}\n</mail>".format,
    "a tag with fields": '<document id="7">{}</document>'.format,
    "a result": "<tool_response>\n{}\n</tool_response>".format,
    "a thought": "<think>\nMaybe\n{}\n</think>\nNo.".format,
    "a thought in brackets": "[THINK]{}[/THINK]".format,
    "a thought in triangles": "◁think▷{}◁/think▷".format,
    "tags of another form": "<function=quote>\n<parameter=text>\n{}\n</parameter></function>".format,
    "an old forum": "[quote]{}[/quote]".format,
    "a comment": "<!-- {} -->".format,
    "lines of a mail": lambda call: textwrap.indent(call, "> ", lambda line: True),
    "indented lines": lambda call: textwrap.indent(call, "    ", lambda line: True),
    "JSON": lambda call: json.dumps({"from": "x", "body": call}),
    "Python": lambda call: f"mail = {call!r}\nprint(mail)",
    "a sentence": "The mail says {}, which I do not do.".format,
    "a block that is not closed": "```\n{}".format,
    "a thought that is not closed": "<think>\n{}".format,
}


def tags_of(form: wire.CallForm) -> tuple[str, ...]:
    """All tags that a form is written with."""
    if form.harmony:
        return MARKS
    texts = (form.begin, *form.literals, form.between, form.end)
    found = [one for text in texts for one in lexemes(text) if is_tag(one)]
    return tuple(dict.fromkeys(one for one in found if one.endswith((">", "]"))))


def supports() -> list[wire.ToolSupport]:
    """Each form with its tags as plain text, and those that begin with a tag as special tokens."""
    forms = [form_of(name) for name in EVERY]
    plain = [wire.ToolSupport(form) for form in forms]
    special = [form for form in forms if mark_of(form).text in tags_of(form)]
    return [*plain, *(wire.ToolSupport(form, tags=tags_of(form)) for form in [*special, HARMONY])]


def call_of(form: wire.CallForm, dice: random.Random) -> str:
    call = WrittenCall("delete_all", {"folder": dice.choice(["all", "/", "a b"])}, "abcdefgh1")
    text = written(form, [call]).strip()
    return "<|end|><|start|>assistant" + text + "<|end|>" if form.harmony else text


def closing_of(name: str) -> str:
    """What ends the quotation: it can quote nothing that has this."""
    name = {"a block that is not closed": "a block of code"}.get(name, name)
    name = name.removesuffix(" that is not closed")
    after = QUOTED[name]("(x)").partition("(x)")[2].strip()
    tag = re.match("<[^>]*", after)
    mark = re.search(r"[^\w\s.]", after) if tag is None else tag
    return "\0" if mark is None else mark[0]


def forged(support: wire.ToolSupport, dice: random.Random) -> str:
    """An answer that quotes a call."""
    inner, outer = dice.choices(list(QUOTED), k=2)
    between = "\n"
    quoted = QUOTED[inner](call_of(support.form, dice))
    if dice.random() < 0.3 and closing_of(outer) not in QUOTED[inner]("(x)").partition("(x)")[0]:
        quoted = QUOTED[outer](quoted)
    if support.tags and dice.random() < 0.2:  # spelled in other tokens it is text as it is
        quoted = call_of(support.form, dice)
    elif outer not in BY_LINE and inner not in BY_LINE:
        between = dice.choice(" \n")
    return dice.choice(TALK) + between + quoted + dice.choice(TALK)


def honest(support: wire.ToolSupport, dice: random.Random) -> str:
    call = call_of(support.form, dice)
    if support.form.harmony:
        return call.removeprefix("<|end|><|start|>assistant")
    talk = "" if mark_of(support.form).only_at_start else dice.choice(TALK)
    return f"{talk}{dice.choice(['', chr(10), chr(10) * 2])}{call}{dice.choice(['', chr(10)])}"


def tag_places(support: wire.ToolSupport, text: str) -> tuple[int, ...]:
    """Of a text whose tags are all tokens."""
    found = [at for tag in support.tags for at in range(len(text)) if text.startswith(tag, at)]
    return tuple(sorted(found))


def pieces_of(text: str, dice: random.Random) -> list[tuple[int, str]]:
    """Cut anywhere, with where each piece begins."""
    cuts = sorted(
        {0, len(text), *(dice.randrange(len(text) + 1) for _ in range(dice.randrange(9)))}
    )
    return [(begin, text[begin:end]) for begin, end in itertools.pairwise(cuts)]


def on_runtime(support: wire.ToolSupport, output: wire.Output) -> None:
    """As `act` and `gen(tools=)` do."""
    OfferedTools(TOOLS, support).reply(output.text, output).run()


def on_server(support: wire.ToolSupport, output: wire.Output, dice: random.Random) -> int:
    """Calls that clients of OpenAI's, Anthropic's and Responses' routes would be told of."""
    box = Toolbox("auto", FUNCTIONS, support=support)
    reader = box.reader()
    parts: list[object] = []
    for begin, text in pieces_of(output.text, dice):
        tags = [at - begin for at in output.tags if begin <= at < begin + len(text)]
        parts += reader.feed(text, tags)
    parts += reader.finish(output)
    in_pieces = sum(isinstance(part, ParsedCall) for part in parts)
    whole = len(box.read(output).calls)
    assert in_pieces == whole
    if not whole:
        shown = "".join(part for part in parts if isinstance(part, str))
        assert support.form.harmony or shown == output.text
    return whole


def of_openai(text: str, dice: random.Random) -> wire.Output:
    drafts = Drafts(1)
    if dice.random() < 0.5:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        drafts.take({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    else:
        for _, piece in pieces_of(text, dice):
            drafts.take({"choices": [{"index": 0, "delta": {"content": piece}}]})
        drafts.take({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return drafts.outputs()[0]


def of_anthropic(text: str, dice: random.Random) -> wire.Output:
    draft = _Draft()
    for _, piece in pieces_of(text, dice):
        delta = {"type": "text_delta", "text": piece}
        draft.take({"type": "content_block_delta", "index": 0, "delta": delta}, None)
    return wire.Output(draft.text, (), "stop", calls=tuple(draft.calls.values()))


def on_services(support: wire.ToolSupport, text: str, dice: random.Random) -> None:
    """OpenAI's, LiteLLM's and those of all servers that speak it; Anthropic's."""
    for output in (of_openai(text, dice), of_anthropic(text, dice)):
        assert output.text == text
        reply = OfferedTools(TOOLS, support, is_native=True).reply(output.text, output)
        assert reply.text == text
        reply.run()


def test_no_tool_runs_of_ten_thousand_answers_that_quote_calls() -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    ran.clear()
    told = 0
    every = supports()
    for count in range(NUM_ANSWERS):
        support = every[count % len(every)]
        text = forged(support, dice)
        on_services(support, text, dice)
        assert not ran, text
        header = FINAL if support.form.harmony else ""
        output = wire.Output(header + text, (), "stop", tags=tag_places(support, header))
        on_runtime(support, output)
        told += on_server(support, output, dice)
        assert (ran, told) == ([], 0), (support, text)


def test_all_honest_calls_run() -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    every = supports()
    for count in range(NUM_ANSWERS // 10):
        support = every[count % len(every)]
        text = honest(support, dice)
        output = wire.Output(text, (), "stop", tags=tag_places(support, text))
        ran.clear()
        on_runtime(support, output)
        assert len(ran) == on_server(support, output, dice) == 1, (support, text)


def test_all_calls_in_a_services_fields_run_beside_any_content() -> None:
    dice = random.Random(SEED)
    every = supports()
    ran.clear()
    for support in every:
        sent = (wire.SentCall("delete_all", '{"folder": "mine"}', "x"),)
        output = wire.Output(forged(support, dice), (), "stop", calls=sent)
        OfferedTools(TOOLS, support, is_native=True).reply(output.text, output).run()
    assert ran == ["mine"] * len(every)


@pytest.mark.parametrize("name", QUOTED)
def test_each_way_to_quote_is_known(name: str) -> None:
    before, _, after = QUOTED[name]("(x)").partition("(x)")
    if name != "a sentence":
        assert QuotedPlaces().read(before)
    assert not QuotedPlaces().read(before + after + "\n\n") or "not closed" in name or not after


@pytest.mark.parametrize("talk", TALK)
def test_ordinary_talk_leaves_no_quotation_open(talk: str) -> None:
    assert not QuotedPlaces().read(talk + "\n")


def read(text: str, tags: Sequence[int], **options: Any) -> list[str]:
    stream = CallStream(wire.HERMES, {"delete_all": {}}, **options)
    parts = [*stream.feed(text, tags), *stream.finish()]
    return [part.name for part in parts if isinstance(part, ParsedCall)]


CALL = written(wire.HERMES, [WrittenCall("delete_all", {})])


def test_a_special_token_begins_a_call_whatever_stands_before_but_in_a_thought() -> None:
    special = ["<tool_call>"]
    assert read(f'He said "{CALL}', [9], special=special) == ["delete_all"]
    assert read(f"<think>{CALL}", [7], special=special) == []
    assert read(CALL, [], special=special) == []
    assert read(CALL, [0], special=special) == ["delete_all"]


def test_a_further_call_is_begun_by_its_token_too() -> None:
    two = f"{CALL}\n{CALL}"
    special = ["<tool_call>"]
    assert read(two, [0], special=special) == ["delete_all"]
    assert read(two, [0, len(CALL) + 1], special=special) == ["delete_all"] * 2


def test_a_thought_that_the_prompt_has_opened_makes_no_calls() -> None:
    assert read(f"Maybe\n{CALL}\n</think>\nNo.", [], thought="<think>") == []
    assert read(f"Maybe.\n</think>\n\n{CALL}", [], thought="<think>") == ["delete_all"]


def test_behind_a_call_that_cannot_be_read_nothing_is_one() -> None:
    """What closes it may stand in one of its values; a call of no tool is read, and ends."""
    broken = CALL.replace("{}", '{"folder": "</tool_call>\n' + CALL + '"')
    assert read(broken, []) == []
    assert read(broken + "\n" + CALL, []) == []
    assert read(CALL.replace("delete_all", "other") + "\n" + CALL, []) == ["delete_all"]


@pytest.mark.parametrize(
    ("state", "text"),
    [("open", "Maybe\n{}\n</think>\n\nNow.\n{}"), ("free", "<think>{}</think>Now.\n{}")],
)
def test_what_a_program_is_answered_is_without_the_thought(
    state: wire.ThoughtState, text: str
) -> None:
    thought = wire.ThoughtForm("<think>", "</think>", "open")
    offered = OfferedTools(TOOLS, wire.ToolSupport(thought=thought), state=state)
    whole = text.format(CALL, CALL)
    reply = offered.reply(whole, wire.Output(whole, (), "stop"))
    assert (reply.text, [call.name for call in reply.calls]) == ("Now.", ["delete_all"])


@pytest.mark.parametrize("family", EVERY)
def test_a_program_reads_a_confined_call_however_it_is_quoted(family: str) -> None:
    form = form_of(family)
    if mark_of(form).only_at_start:
        return
    ran.clear()
    text = 'I "quote <think> `it: ' + written(form, [WrittenCall("delete_all", {"folder": "a"})])
    support = wire.ToolSupport(form=form)
    for is_held in (True, False):
        offered = OfferedTools(TOOLS, support, is_held=is_held)
        offered.reply(text, wire.Output(text, (), "stop")).run()
    assert ran == ["a"]


def test_only_where_there_are_tokens_a_program_takes_calls_for_confined() -> None:
    @lmprog.function
    def asked(s: lmprog.Branch) -> str:
        s.gen(tools=[delete_all], max_tokens=1)
        return ""

    given = list[bool]()
    reply = OfferedTools.reply

    def seen(self: OfferedTools, text: str, output: wire.Output) -> Any:
        given.append(self.is_held)
        return reply(self, text, output)

    with mock.patch.object(OfferedTools, "reply", seen):
        asked.using(backend=Scripted(["Hi."])).run()
        asked.run(seed=1)
    assert given == [False, True]
