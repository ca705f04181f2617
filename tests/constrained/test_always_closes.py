"""A constrained generation ends complete within its tokens, whatever the model wants and whatever
would stop it.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest

from lmprog import wire
from lmprog.errors import GrammarError
from lmprog.runtime.text.tokenizer import Tokenizer
from tests.constrained.writer import Writer, byte_tokenizer, constraints_of, nano_tokenizer

REGEXES = [
    r"a+b?",
    r"[a-z]{3,12}",
    r"(yes|no|maybe)( (yes|no|maybe)){0,5}",
    r"\d{4}-\d{2}-\d{2}",
    r"-?\d+(\.\d+)?([eE][+-]?\d{1,3})?",
    r".{0,40}",
    r'\{"name": "[\w ]{1,16}", "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)", '
    r'"alive": (true|false)\}',
    r"(The quick brown fox jumps over the lazy dog\. )+End",
    r"([^\W\d_]+, )*[^\W\d_]+",
    r"[\u00e0-\u00ff]{2,9}",
    r"x*",
    r"(ab(xc)?)*",
]
SCHEMAS: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": "string", "maxLength": 20},
    {"type": "array", "items": {"type": "number"}, "minItems": 1},
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
     "required": ["name", "age"], "additionalProperties": False},
    {"type": "object", "properties": {"kind": {"enum": ["first choice", "second choice"]}, "note": {"type": "string"}},
     "required": ["kind"]},
    {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}]},
    {"$defs": {"tree": {"type": "object", "properties": {"value": {"type": "integer"},
     "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "required": ["value", "children"],
     "additionalProperties": False}}, "$ref": "#/$defs/tree"},
    {"type": "array", "items": {"type": "string", "maxLength": 2}, "uniqueItems": True, "minItems": 2, "maxItems": 5},
    {"type": "array", "items": {"type": "string", "pattern": "^(ab?|b)$"}, "uniqueItems": True},
]  # fmt: skip
CHOICES = [
    ("a", "ab", "abc"),
    ("north", "south", "east", "west"),
    ("one two three", "one two four"),
    ("\u00fc", "\u00fcber"),
]
CONSTRAINTS: list[wire.Constraint] = [
    *(wire.Regex(pattern) for pattern in REGEXES),
    *(wire.JsonSchema(json.dumps(schema)) for schema in SCHEMAS),
    wire.JsonSchema(json.dumps(SCHEMAS[3]), whitespace="flexible", any_order=True),
    *(wire.Choices(texts) for texts in CHOICES),
]
NUM_ROUNDS = 25
"""Two tokenizers, 26 constraints, 50 rounds: 2,600 generations."""


def is_instance(constraint: wire.Constraint, text: str) -> bool:
    """Judged by other people's code."""
    match constraint:
        case wire.Regex(pattern=pattern):
            return re.fullmatch(pattern, text) is not None
        case wire.Choices(texts=texts):
            return text in texts
        case wire.JsonSchema(schema=schema):
            try:
                return bool(
                    jsonschema.Draft202012Validator(json.loads(schema)).is_valid(json.loads(text))
                )
            except ValueError:
                return False
    raise AssertionError(constraint)


def any_sampling(
    rng: random.Random, tokenizer: Tokenizer, constraint: wire.Constraint
) -> wire.SamplingParams:
    """Anything that pulls at a generation; `max_tokens` from the least that is accepted."""
    compiled = constraints_of(tokenizer).compile(constraint)
    least = max(1, compiled.distance(compiled.start))
    some = [token for token in range(tokenizer.vocab_size) if rng.random() < 0.05]
    return wire.SamplingParams(
        temperature=rng.choice([0.0, 0.5, 1.0, 5.0, 100.0]),
        seed=rng.randrange(2**32),
        max_tokens=least + rng.choice([0, 0, 1, 2, 3, 5, 8, 20, 60]),
        min_tokens=rng.choice([0, 0, 5, 1000]),
        ignore_eos=rng.random() < 0.5,
        stop=rng.choice([(), (), ('"',), ("a", " "), ("}", ",", "e")]),
        stop_regex=rng.choice([(), (), (r"[0-9]",)]),
        stop_token_ids=tuple(rng.sample(some, min(len(some), 64))) if rng.random() < 0.3 else (),
        logit_bias=tuple((token, rng.choice([-100.0, 100.0])) for token in some[:1024])
        if rng.random() < 0.3
        else (),
        n=rng.choice([1, 1, 1, 3]),
    )


@pytest.mark.parametrize("name", ["bytes", "nano"])
def test_every_finished_text_is_an_instance_whatever_the_model_wants(name: str) -> None:
    tokenizer: Tokenizer = byte_tokenizer() if name == "bytes" else nano_tokenizer()
    rng = random.Random(20)
    num_forced = num_outputs = 0
    for seed in range(NUM_ROUNDS):
        writer = Writer(tokenizer, forcing=seed % 5 > 0)
        asked = [
            (constraint, any_sampling(rng, tokenizer, constraint)) for constraint in CONSTRAINTS
        ]
        for (constraint, sampling), reply in zip(asked, writer.ask(*asked), strict=True):
            assert isinstance(reply, wire.CallDone), (constraint, sampling, reply)
            assert sampling.max_tokens is not None
            for output in reply.outputs:
                assert is_instance(constraint, output.text), (seed, constraint, sampling, output)
                assert len(output.tokens) <= sampling.max_tokens
                num_outputs += 1
            num_forced += reply.usage.forced
    assert num_outputs >= len(CONSTRAINTS) * NUM_ROUNDS
    assert num_forced > 0, "some of it was forced"


def test_max_tokens_that_cannot_hold_the_shortest_instance_is_refused_with_both_numbers() -> None:
    writer = Writer(byte_tokenizer())
    digits = wire.Regex(r"[0-9]{12}")
    (refused,) = writer.ask((digits, wire.SamplingParams(max_tokens=11)))
    assert isinstance(refused, wire.Failed)
    assert refused.code == "unsatisfiable"
    assert "12" in refused.message
    assert "11" in refused.message
    (held,) = writer.ask((digits, wire.SamplingParams(max_tokens=12)))
    assert isinstance(held, wire.CallDone)
    assert held.outputs[0].finish == "constraint"


def test_a_constraint_that_takes_only_the_empty_text_ends_at_once() -> None:
    (reply,) = Writer(byte_tokenizer()).ask((wire.Regex(""), wire.SamplingParams(max_tokens=7)))
    assert isinstance(reply, wire.CallDone)
    assert (reply.outputs[0].text, reply.outputs[0].finish) == ("", "constraint")


def test_a_stop_counts_only_where_the_text_before_it_is_complete() -> None:
    sampling = wire.SamplingParams(max_tokens=9, stop=("b",), ignore_eos=True)
    (inside,) = Writer(byte_tokenizer()).ask((wire.Regex("aab[cd]b"), sampling))
    (whole,) = Writer(byte_tokenizer()).ask((wire.Regex("aa(bc)?"), sampling))
    assert isinstance(inside, wire.CallDone)
    assert isinstance(whole, wire.CallDone)
    assert inside.outputs[0].text in ("aabcb", "aabdb")
    assert inside.outputs[0].finish == "constraint"
    assert (whole.outputs[0].text, whole.outputs[0].finish) == ("aa", "stop")


@pytest.mark.parametrize("name", ["bytes", "nano"])
def test_no_stop_is_in_a_text_that_may_be_written_without_it(name: str) -> None:
    tokenizer: Tokenizer = byte_tokenizer() if name == "bytes" else nano_tokenizer()
    schema = wire.JsonSchema('{"type": "array", "items": {"type": "string"}, "minItems": 9}')
    stops = ("e", "th", "\n\n", ", i", "on")
    asked = [
        (schema, wire.SamplingParams(seed=seed, temperature=5.0, max_tokens=90, stop=more))
        for seed in range(8)
        for more in (stops, ())
    ]
    replies = Writer(tokenizer).ask(*asked)
    texts = [reply.outputs[0].text for reply in replies if isinstance(reply, wire.CallDone)]
    assert len(texts) == len(asked)
    assert all(is_instance(schema, one) for one in texts)
    assert not [(one, stop) for one in texts[::2] for stop in stops if stop in one]
    assert [one for one in texts[1::2] for stop in stops if stop in one], "else it shows nothing"


def test_a_stop_token_inside_an_instance_is_text() -> None:
    quote = ord('"')
    sampling = wire.SamplingParams(max_tokens=12, stop_token_ids=(quote,))
    (reply,) = Writer(byte_tokenizer()).ask((wire.Regex('"[ab]{3}"'), sampling))
    assert isinstance(reply, wire.CallDone)
    assert re.fullmatch('"[ab]{3}"', reply.outputs[0].text)


def test_every_token_has_its_log_probability_where_they_are_wanted() -> None:
    sampling = wire.SamplingParams(max_tokens=60, logprobs=1)
    (reply,) = Writer(nano_tokenizer()).ask(
        (wire.Choices(("The quick brown fox jumps over the dog.",)), sampling)
    )
    assert isinstance(reply, wire.CallDone)
    output = reply.outputs[0]
    assert [one.token for one in output.logprobs] == list(output.tokens)


def test_a_constraint_that_outgrows_its_limits_fails_its_own_call_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = Writer(byte_tokenizer())
    broken = writer.constraints.compile(wire.Regex("broken[abc]+"))

    def too_large(*_: object) -> None:
        raise GrammarError("the constraint grew beyond its limits", position=None)

    long = wire.SamplingParams(max_tokens=20, ignore_eos=True)
    for verb in ("mask", "advance"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, verb, too_large)
            other, failed = writer.ask(
                (wire.Regex("other[abc]+"), long), (wire.Regex("broken[abc]+"), long)
            )
        assert isinstance(failed, wire.Failed), verb
        assert failed.code == "grammar"
        assert isinstance(other, wire.CallDone), verb
        assert len(other.outputs[0].text) == 20


def test_forced_tokens_never_use_up_what_the_rest_needs() -> None:
    """The tokenizer's own tokens of this text are more than the fewest that spell it."""
    tokenizer, text = nano_tokenizer(), "occupation: wizard, headmaster of Hogwarts School"
    constraint = wire.Choices((text,))
    compiled = constraints_of(tokenizer).compile(constraint)
    least = compiled.distance(compiled.start)
    assert least < len(tokenizer.encode(text, start=False))
    (reply,) = Writer(tokenizer).ask((constraint, wire.SamplingParams(max_tokens=least)))
    assert isinstance(reply, wire.CallDone)
    assert (reply.outputs[0].text, len(reply.outputs[0].tokens)) == (text, least)
