"""The documents that teach calls of tools, being asked again, and tags: what is to be said follows
from what was shown."""

from __future__ import annotations

import json
import re

import jsonschema

from lmprog import wire
from lmprog.tool_calls.reading import calls_in
from training.document import END, Document
from training.draw import Draw, Split
from training.tasks import calls, correction, tagged
from training.tasks.offers import draw_offers
from training.tasks.services import SERVICES
from training.world import document


def _documents(maker: object, count: int = 60) -> list[Document]:
    return [
        document(split, number, maker)  # type: ignore[arg-type]
        for split in Split
        for number in range(count)
    ]


def _answers(doc: Document, *kinds: str) -> list[str]:
    return [s.text.removesuffix(END) for s in doc.segments if s.answer and s.kind in kinds]


def _schemas(doc: Document) -> dict[str, dict[str, object]]:
    shown = re.search(r"<tools>\n(.*?)\n</tools>", doc.segments[0].text, re.DOTALL)
    assert shown is not None
    tools = [json.loads(line)["function"] for line in shown[1].splitlines()]
    return {tool["name"]: tool["parameters"] for tool in tools}


def test_every_call_is_read_by_lmprog_and_fits_the_schema_that_was_shown() -> None:
    seen = 0
    for doc in _documents(calls.calls):
        schemas = _schemas(doc)
        for text in _answers(doc, "call", "two calls"):
            found = calls_in(wire.HERMES, text, schemas)
            assert found
            for call in found:
                jsonschema.validate(json.loads(call.arguments), schemas[call.name])
            seen += 1
    assert seen > 200


def test_arguments_stand_in_the_request() -> None:
    for number in range(200):
        draw = Draw(f"offers:{number}", Split.HELD)
        for offer in draw_offers(draw, 2):
            use = offer.use(draw)
            assert all(str(value) in use.request for value in use.arguments.values())


def test_no_two_tools_of_a_document_have_one_name() -> None:
    for number in range(100):
        names = [offer.name for offer in draw_offers(Draw(f"names:{number}"), 4)]
        assert len(set(names)) == 4


def test_held_requests_are_never_used_in_training() -> None:
    for service in SERVICES:
        assert service.requests.held
        assert not set(service.requests.train) & set(service.requests.held)


def test_a_corrected_answer_is_none_of_the_wrong_ones() -> None:
    for doc in _documents(correction.correction, 200):
        given, answer = doc.segments[0].text, "".join(s.text for s in doc.segments if s.answer)
        right = answer.removesuffix(END).strip()
        wrong = re.findall(r"(?:<\|assistant\|>|^A(?:nswer)?: )(.*?)(?:<\|end\|>|$)", given, re.M)
        assert right not in [text.strip() for text in wrong if text.strip()]
        assert "That is not right: " in doc.text


def test_without_its_tags_a_marked_text_is_the_text_that_was_given() -> None:
    for doc in _documents(tagged.tagged):
        asked = ""
        for segment in doc.segments:
            if segment.kind == "mark":
                plain = re.sub(r"</?\w+>", "", segment.text.removesuffix(END))
                assert plain in asked
            asked = segment.text
