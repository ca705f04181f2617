"""Dialogue in the chat format: facts of earlier turns, obedience to the system line, other tasks by
chat.
"""

from __future__ import annotations

import json

from training.document import ASSISTANT, END, SYSTEM, USER, Document, Family, Page
from training.draw import Draw, Split, ways
from training.passage import draw_passage
from training.tasks import arithmetic, classification, extraction, reading
from training.tasks.memories import MEMORIES, SMALL_TALK, Memory

_NEUTRAL_SYSTEMS = (
    "You are a helpful assistant.",
    "You are nano, a small model.",
    "You are a friendly assistant.",
    "Answer the user.",
    "You help the user with short answers.",
    "You are an assistant.",
    "Be helpful and brief.",
    "You are a kind assistant. Be polite.",
)
_ONE_WORD = ways(
    "Answer in one word.",
    "Answer with one word only.",
    "Use one word for each answer.",
    "Reply with a single word.",
    "You answer in one word.",
    "Every answer is one word.",
    "Always use a single word.",
    "Please use one word.",
    "You are a helpful assistant. Answer in one word.",
    held=(
        "Always answer in one word.",
        "Please answer with a single word.",
        "Give one word answers.",
    ),
)
_JSON = ways(
    "Answer in JSON.",
    "Reply in JSON.",
    "Always answer in JSON.",
    "Every answer is JSON.",
    "Please use JSON.",
    "Write each answer as JSON.",
    "Answer with a JSON object.",
    "You are a helpful assistant. Answer in JSON.",
    held=("Please answer in JSON.", "Give each answer in JSON."),
)
_UPPER = ways(
    "Answer in capital letters.",
    "Write in capital letters.",
    "Use only capital letters.",
    "Only capital letters.",
    "Use capital letters in every answer.",
    "Write all answers in capital letters.",
    held=("Always answer in capital letters.",),
)

_ASK_SENTIMENT = ways(
    "Is this review positive, negative or neutral?",
    "Classify as positive, negative or neutral:",
    "Is this positive, negative or neutral?",
    "Tell me if this review is positive, negative or neutral.",
    "Label this as positive, negative or neutral.",
    "What is the sentiment of this review: positive, negative or neutral?",
    "Classify the review as positive, negative or neutral.",
    held=("Classify this review as positive, negative or neutral.",),
)
_ASK_TOPIC = ways(
    "Classify the message as {l}:",
    "Is this message about {l}?",
    "Which label fits this message, {l}?",
    "Label this message as {l}.",
    "What is this message about, {l}?",
    "Choose the right label, {l}, for this message.",
    held=("Classify this message as {l}.",),
)


class Chat:
    """Writes the turns of one chat under one system line."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.page = Page(Family.DIALOGUE)
        styles = ("full", "full", "full", "word", "word", "json", "upper")
        more = ("upper", "upper", "upper") if draw.split is Split.TRAIN else ()
        self.style = draw.one((*styles, *more))  # spelling in capitals is learned slowly
        systems = {"word": _ONE_WORD, "json": _JSON, "upper": _UPPER}
        if self.style in systems:
            self.page.text(f"{SYSTEM}{draw.template(systems[self.style])}{END}")
        elif draw.chance(0.5):
            self.page.text(f"{SYSTEM}{draw.one(_NEUTRAL_SYSTEMS)}{END}")

    def user(self, text: str) -> None:
        """A user's turn, and the head of the assistant's."""
        self.page.text(f"{USER}{text}{END}{ASSISTANT}")

    def assistant(self, full: str, value: str, kind: str, choices: tuple[str, ...] = ()) -> None:
        """The assistant's turn: `full` is the sentence, `value` the bare answer."""
        text = {
            "full": full,
            "word": value,
            "json": json.dumps({"answer": value}),
            "upper": full.upper(),
        }[self.style]
        self.page.answer(
            text + END,
            judged=kind != "talk",
            kind=kind if self.style == "full" else f"{kind}, {self.style}",
            choices=choices,
        )


def memory(draw: Draw) -> Document:
    """The user tells one to four things, with other turns between, and asks for some of them."""
    chat = Chat(draw)
    told: list[tuple[Memory, str]] = []
    pending = draw.some(MEMORIES, draw.one((1, 1, 2, 3, 4)))
    while pending:
        if draw.chance(0.2):
            _talk(chat)
        batch = [pending.pop() for _ in range(min(len(pending), draw.one((1, 1, 2))))]
        facts = [(item, item.draw(draw)) for item in batch]
        text = " ".join(draw.say(item.say, v=value) for item, value in facts)
        told += facts
        if draw.chance(0.3):
            item, value = draw.one(facts)
            chat.user(f"{text} {draw.say(item.ask)}")
            chat.assistant(item.full.format(v=value), value, "memory")
        else:
            chat.user(text)
            _acknowledge(chat, facts)
        if draw.chance(0.15):
            _talk(chat)
    for item, value in draw.some(told, draw.number(1, min(3, len(told)))):
        chat.user(draw.say(item.ask))
        chat.assistant(item.full.format(v=value), value, "memory")
    return chat.page.done()


def _acknowledge(chat: Chat, facts: list[tuple[Memory, str]]) -> None:
    item, value = facts[0]
    if item is MEMORIES[0]:
        chat.assistant(f"Nice to meet you, {value}!", "Hello", "talk")
    else:
        chat.assistant("I will remember that.", "Okay", "talk")


def _talk(chat: Chat) -> None:
    draw = chat.draw
    if draw.chance(0.5):
        said, answer = draw.one(SMALL_TALK)
        if chat.style == "full":
            chat.user(draw.one(said))
            chat.assistant(answer, answer, "talk")
        return
    text, answer, kind, _ = arithmetic.question(draw)
    if kind in ("sum", "difference"):
        chat.user(text)
        chat.assistant(answer, answer, "sum")


def small_talk(draw: Draw) -> Document:
    """Greetings and questions about nano itself."""
    chat = Chat(draw)
    chat.style = "full"
    for said, answer in draw.some(SMALL_TALK, draw.number(1, 3)):
        chat.user(draw.one(said))
        chat.assistant(answer, answer, "talk")
    page = chat.page
    page.segments = (
        [s for s in page.segments if not s.text.startswith(SYSTEM)]
        if draw.chance(0.5)
        else page.segments
    )
    return page.done()


def asked(draw: Draw) -> Document:
    """Other families asked by chat: the bare answer comes back."""
    page = Page(Family.DIALOGUE)
    if draw.chance(0.5):
        page.text(f"{SYSTEM}{draw.one(_NEUTRAL_SYSTEMS)}{END}")
    kind = draw.number(0, 4)
    if kind == 0:
        passage = draw_passage(draw, most=5)
        for index in range(draw.number(1, 3)):
            question = reading.ask(draw, passage)
            lead = passage.text + draw.one(("\n", "\n\n", " ")) if index == 0 else ""
            page.text(f"{USER}{lead}{question.question}{END}{ASSISTANT}")
            page.answer(question.answer + END, kind="reading")
    elif kind == 1:
        want = extraction.wanted(draw)
        ask = draw.one(
            (
                f"Extract {want.asked} as JSON.",
                f"Extract {want.asked} from the text as JSON.",
                f"Give JSON with {want.asked}.",
            )
        )
        page.text(
            f"{USER}{draw.one((f'{ask} {want.text}', want.text + chr(10) + ask))}{END}{ASSISTANT}"
        )
        page.answer(
            extraction.dumped(want.right, False) + END, schema=want.schema, kind="extraction"
        )
    elif kind == 2:
        label = draw.one(classification.SENTIMENTS)
        text = classification.review(draw, label)
        ask = draw.say(_ASK_SENTIMENT)
        page.text(f"{USER}{draw.one((f'{ask} {text}', text + chr(10) + ask))}{END}{ASSISTANT}")
        page.answer(label + END, kind="classification")
    elif kind == 3:
        chosen, labels = classification.labels_of(draw, draw.number(2, 4))
        which = draw.number(0, len(chosen) - 1)
        ask = draw.say(_ASK_TOPIC, l=classification.joined(labels, " or "))
        text = classification.message(draw, chosen[which])
        page.text(f"{USER}{draw.one((f'{ask} {text}', text + chr(10) + ask))}{END}{ASSISTANT}")
        page.answer(labels[which] + END, kind="classification")
    else:
        for _ in range(draw.number(1, 4)):
            text, answer, _, _ = arithmetic.question(draw)
            page.text(f"{USER}{text}{END}{ASSISTANT}")
            page.answer(f"{answer}{END}", kind="arithmetic")
    return page.done()


def told_by_system(draw: Draw) -> Document:
    """A passage in the system line, questions by the user, sentences back in full or bare."""
    passage = draw_passage(draw, most=5)
    page = Page(Family.DIALOGUE)
    bare = draw.chance(0.5)
    lead = ("Answer in one word. " if bare else "") + draw.one(("Facts: ", "", "You know this: "))
    page.text(f"{SYSTEM}{lead}{passage.text}{END}")
    for _ in range(draw.number(1, 3)):
        question = reading.ask(draw, passage)
        page.text(f"{USER}{question.question}{END}{ASSISTANT}")
        page.answer(question.answer + END, kind="system facts")
    return page.done()
