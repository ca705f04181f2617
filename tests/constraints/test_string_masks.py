"""Masks inside JSON strings: made without a walk, and the same as the oracle says."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from typing import Any

import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import NARROW, State
from lmprog.constraints.forced import forced_tokens, without_symbols
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.runtime.programs.call_constraints import vocabulary_of
from lmprog.runtime.text.tokenizer import PieceTokenizer
from tests.constraints.conftest import EOS
from tests.constraints.oracle import Judged

PIECES = ['"', '"', ", ", ":", "}", "a", "b", "é", "日", "\\n", "\\u00e9", "\\", "\n", "x" * 20]
NAMES = {"a": {"type": "integer"}, "ab": {"type": "null"}, "a-b": {}}
SCHEMAS: list[Any] = [
    {"type": "string"},
    {"type": "string", "minLength": 3},
    {"type": "string", "maxLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 50},
    {"type": "string", "maxLength": 200},
    {"type": "string", "pattern": "^(a?|ab).{0,9}$"},
    {"type": "string", "pattern": "^.*a.{2,30}$"},
    {"type": "string", "not": {"enum": ["ab", "aba", 'a"']}},
    {"type": "string", "pattern": r"^(\S+\s+){0,3}\S+$", "maxLength": 20, "minLength": 2},
    {"type": "string", "pattern": "^a", "maxLength": 12},
    {"type": "string", "allOf": [{"pattern": "a.*b"}, {"pattern": "^[a-e ]+$"}], "minLength": 6},
    {"type": "string", "pattern": "^(ab|c)+$", "not": {"pattern": "cc"}, "maxLength": 9},
    {"anyOf": [{"pattern": "^.", "maxLength": 3}, {"pattern": ".$", "minLength": 5}]},
    {"type": "object", "properties": NAMES},
    {"type": "object", "properties": NAMES, "required": ["ab"]},
    {"type": "object", "properties": {"é": True, 'a"b': {"type": "null"}}},
    {"type": "object", "properties": NAMES, "patternProperties": {"^b": {"type": "null"}}},
    {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "string", "pattern": "^a"}]},
    {"type": "array", "items": {"type": "string", "maxLength": 40}},
    {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}},
]


def random_words(rng: random.Random, count: int) -> list[bytes | None]:
    """Tokens that stay inside of strings, close them, or occur in none; some are cut."""
    out: list[bytes | None] = []
    for _ in range(count):
        length = rng.choice([1, 2, 2, 3, 4, 6])
        word = rng.choice(["", "", " "]) + "".join(rng.choices(PIECES, k=length))
        data = word.encode()
        out.append(data[: len(data) - rng.choice([0, 0, 0, 1])] or None)
    return out


@pytest.fixture(scope="module")
def quoting() -> Vocabulary:
    rng = random.Random(4)
    single: list[bytes | None] = [None, *(bytes([byte]) for byte in range(256))]
    return Vocabulary([*single, *random_words(rng, 1800)], [EOS], use_cache=False)


def test_masks_inside_strings_are_what_the_oracle_says(quoting: Vocabulary) -> None:
    rng = random.Random(7)
    some = range(0, len(quoting), 2)
    num_wide = 0
    for schema in SCHEMAS:
        spec = wire.JsonSchema(json.dumps(schema))
        judged = Judged.of(spec, quoting, some)
        for _ in range(6):
            judged.tokens(judged.engine.cost(judged.here) + rng.randint(0, 7))
            tokens = judged.tokens()
            num_wide += len(tokens) > NARROW // 2
            if not tokens:
                break
            judged.advance(quoting.bytes_of(rng.choice(tokens)) or b"")
    assert num_wide > 40


def test_strings_with_room_for_every_token_share_one_mask(quoting: Vocabulary) -> None:
    made = compile_constraint(wire.JsonSchema('{"type": "string", "maxLength": 500}'), quoting)
    rows = {}
    for length in range(1, 6):
        state = made.advance_bytes(made.start, b'"' + b"a" * length)
        assert state is not None
        rows[length] = (state, made.mask(state))
    states: set[State] = {state for state, _ in rows.values()}
    assert len(states) == 5
    assert len({id(row) for _, row in rows.values()}) == 1


TAG, OTHER_TAG = "<tool_call>", "</tool_call>"
SYMBOLS = (257, 258)
WITH_TAGS = Vocabulary(
    [
        None,
        *(bytes([byte]) for byte in range(256)),
        TAG.encode(),
        OTHER_TAG.encode(),
        b"<to",
        b'a"',
    ],
    [0],
    use_cache=False,
    symbols=SYMBOLS,
)
CONFINED = wire.InOrder(
    (
        wire.FreeText((TAG,), TAG),
        wire.JsonSchema(
            """{"properties": {"a": {"type": "string"}, "b": {"type": "string", "maxLength": 14},
            "c": {"type": "array", "items": {"type": "string", "minLength": 5}}}, "required": ["a"],
            "type": "object"}"""
        ),
        wire.Choices((OTHER_TAG,)),
    )
)


@pytest.mark.parametrize("budget", [None, 90])
def test_no_token_that_means_something_else_than_its_text_is_in_a_string(
    budget: int | None,
) -> None:
    made = compile_constraint(CONFINED, WITH_TAGS)
    spelled = f"Say {TAG}"
    value = f"a <b> {TAG} {OTHER_TAG} c"
    arguments = json.dumps(
        {"a": value, "b": f"x{OTHER_TAG}y", "c": [f"{TAG}"], f"{TAG}x": f"{OTHER_TAG}"}
    )
    text = spelled + arguments + OTHER_TAG
    begin, end = len(spelled), len(text) - len(OTHER_TAG)
    within = [False] * len(text)
    for found in re.finditer(r'(?<=")[^":,{}\[\]][^"]*', arguments):
        at, size = begin + found.start(), len(found.group()) + 1  # and where the string may end
        within[at : at + size] = [True] * size
    state, seen = made.start, Counter[str]()
    for at, byte in enumerate(text.encode()):
        mask = made.mask(state, None if budget is None else budget + len(text) - at)
        for symbol, tag in zip(SYMBOLS, (TAG, OTHER_TAG), strict=True):
            may_follow = made.advance_bytes(state, tag.encode()) is not None
            if within[at]:
                assert not mask.allows(symbol)
                seen["within"] += may_follow
            else:
                assert mask.allows(symbol) == may_follow
                seen["outside"] += may_follow
        assert mask.allows(1 + byte)  # and what it is spelled with is
        assert sorted(mask.tokens) == [one for one in range(261) if mask.allows(one)]
        state = made.advance(state, 1 + byte)
    assert made.is_final(state)
    assert seen["within"] > 40
    assert seen["outside"] > 4
    assert end > begin


def test_a_tokenizers_tags_are_known_to_mean_something_else() -> None:
    tokenizer = PieceTokenizer([bytes([byte]) for byte in range(256)] + [None, None], {256: TAG})
    tokenizer.eos_ids = (257,)
    assert vocabulary_of(tokenizer).symbols == ()
    tokenizer.show(TAG)
    assert vocabulary_of(tokenizer).symbols == (256,)


def symbols_on_the_way(spec: wire.Constraint, text: str) -> list[int]:
    """Where a symbol may stand in the text; wherever it may not, its own bytes may. Near the end of
    a budget, too, some token is allowed."""
    made, found = compile_constraint(spec, WITH_TAGS), []
    state = made.start
    for at, byte in enumerate(text.encode()):
        mask, least = made.mask(state), made.distance(state) + 1
        assert made.mask(state, least).count
        assert mask.allows(1 + byte)
        found += [at for symbol in SYMBOLS if mask.allows(symbol)]
        state = made.advance(state, 1 + byte)
    assert made.is_final(state)
    return found


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": "^[a-z<>_/ ]*$"}, f"a{TAG}b"),
        ({"pattern": "^[a-z<>_/ ]*$", "minLength": 3, "maxLength": 30}, f"a{TAG}b"),
        ({"pattern": f"^x?{TAG}"}, f"{TAG}b"),
        ({"not": {"enum": ["a", TAG]}}, f"{TAG}{OTHER_TAG}"),
        ({"const": TAG}, TAG),
        ({"enum": [f'x"{TAG}', TAG, 1]}, f'x"{TAG}'),
        ({"const": {f"{TAG}x": [TAG]}}, {f"{TAG}x": [TAG]}),
        ({"properties": {TAG: {}}, "required": [TAG], "additionalProperties": False}, {TAG: TAG}),
        ({"propertyNames": {"pattern": "^<"}, "minProperties": 1}, {TAG: 1}),
        ({"anyOf": [{"type": "integer"}, {"maxLength": 9, "type": "string"}]}, OTHER_TAG[:8]),
    ],
)
@pytest.mark.parametrize("any_order", [False, True])
def test_no_string_has_a_symbol_whatever_is_said_of_it(
    schema: dict[str, Any], value: Any, any_order: bool
) -> None:
    spec = wire.JsonSchema(json.dumps(schema), any_order=any_order, strict=False)
    text = json.dumps(value)
    assert symbols_on_the_way(spec, text) == []
    tagged = wire.InOrder((wire.Choices((TAG,)), spec, wire.Choices((OTHER_TAG,))))
    ends = [0, len(TAG) + len(text)]
    assert symbols_on_the_way(tagged, f"{TAG}{text}{OTHER_TAG}") == ends, "as what is prescribed"


@pytest.mark.parametrize("schema", ["{}", '{"pattern": "^[a-z<>_/ ]*$"}', '{"maxLength": 30}'])
def test_a_string_between_tags_ends_with_its_own_and_has_no_other(schema: str) -> None:
    form = (
        wire.Choices((TAG,)),
        wire.PlainStrings(schema, OTHER_TAG),
        wire.Choices((OTHER_TAG,)),
    )
    value = f"a {TAG} b"
    text = f"{TAG}{value}{OTHER_TAG}"
    ends = [0, *range(len(TAG), len(text))]
    found = symbols_on_the_way(wire.InOrder(form), text)
    assert found == ends, "one symbol at each place: the one that begins, then the one that ends"


def test_forced_tokens_spell_a_tag_in_a_string() -> None:
    def encode(text: str) -> list[int]:
        parts = re.split(f"({TAG}|{OTHER_TAG})", text)
        tags = {TAG: [SYMBOLS[0]], OTHER_TAG: [SYMBOLS[1]]}
        return [token for one in parts for token in tags.get(one) or [1 + b for b in one.encode()]]

    spec = wire.InOrder((wire.Choices((TAG,)), wire.JsonSchema(f'{{"const": "a{TAG}"}}')))
    made = compile_constraint(spec, WITH_TAGS)
    forced = forced_tokens(made, made.start, WITH_TAGS, encode)
    assert forced == (257, *(1 + byte for byte in b'"a'), 257, 1 + ord('"'))
    assert without_symbols(made, made.start, forced, WITH_TAGS) == forced[:3]
