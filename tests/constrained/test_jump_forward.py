"""Forced text changes what is computed, and nothing of what is said."""

from __future__ import annotations

import functools
import itertools
import json
import random
from array import array
from dataclasses import dataclass

import pytest

from lmprog import wire
from lmprog.constrained import Constrained
from lmprog.constraints.constraint import Constraint
from lmprog.runtime.programs.call_constraints import CONTEXT_TOKENS, CallConstraints
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from tests.constrained.small_model import (
    LeftItsPath,
    PairTokenizer,
    SmallModel,
    SpellingModel,
    distribution,
    keeps_prompt,
    random_tokenizer,
)
from tests.constrained.test_always_closes import REGEXES, SCHEMAS
from tests.constrained.writer import constraints_of, nano_tokenizer

NUM_MODELS = 60


def random_language(rng: random.Random) -> tuple[str, list[str]]:
    """A regex of long forced texts between choices, and all that it matches."""

    def word(least: int, most: int) -> str:
        return "".join(rng.choices("abc", k=rng.randrange(least, most)))

    parts: list[list[str]] = []
    for _ in range(rng.randrange(1, 4)):
        parts.append([word(6, 18)])
        parts.append(
            list(dict.fromkeys([word(1, 4), word(1, 4), *([""] if rng.random() < 0.4 else [])]))
        )
    pattern = "".join("(" + "|".join(part) + ")" for part in parts)
    return pattern, list(dict.fromkeys("".join(chosen) for chosen in itertools.product(*parts)))


@dataclass(frozen=True)
class Case:
    tokenizer: PairTokenizer
    constraints: CallConstraints
    constraint: Constraint
    language: list[str]
    model: SmallModel


def random_case(seed: int) -> Case:
    """A tokenizer, a language all of whose texts leave the prompt's tokens as they are, and a
    model.
    """
    rng = random.Random(seed)
    while True:
        tokenizer = random_tokenizer(rng)
        pattern, language = random_language(rng)
        if all(keeps_prompt(tokenizer, text) for text in language):
            constraints = CallConstraints(tokenizer)
            constraint = constraints.compile(wire.Regex(pattern))
            model = random_model(rng, tokenizer, language, constraint)
            return Case(tokenizer, constraints, constraint, language, model)


def random_model(
    rng: random.Random, tokenizer: PairTokenizer, language: list[str], inside: Constraint
) -> SmallModel:
    """Writes the language's texts, and others: the masks have work to do. Left out is what would
    lead a masked model off its own tokens, where it has no opinion that could be compared."""
    weights = {text: rng.random() for text in language}
    lawful = SmallModel(tokenizer, weights)
    for _ in range(200):
        text = rng.choice(language)
        other = text[: rng.randrange(len(text))] + "".join(
            rng.choices("abc", k=rng.randrange(1, 4))
        )
        if other in weights or not keeps_prompt(tokenizer, other):
            continue
        state, allowed = inside.start, list[int]()
        for token in lawful.written_as(other):
            if not inside.mask(state).allows(token):
                break
            state = inside.advance(state, token)
            allowed.append(token)
        if lawful.next(allowed):
            weights[other] = rng.random()
    return SmallModel(tokenizer, weights)


def all_forced(
    tokenizer: PairTokenizer, constraint: Constraint, state: int, standing: array[int]
) -> tuple[int, ...]:
    """What a naive engine appends: the forced text in its own tokens, up to its very end."""
    return tuple(tokenizer.encode(constraint.forced(state).decode()))


def test_forcing_leaves_the_exact_distribution_over_texts_as_masks_alone_make_it() -> None:
    num_forced = num_masked = 0
    for seed in range(NUM_MODELS):
        case = random_case(seed)
        masked, _ = distribution(case.model, case.constraint, None)
        jumped, forced = distribution(case.model, case.constraint, case.constraints.forcing)
        assert set(masked) <= set(case.language), seed
        assert jumped == pytest.approx(masked, abs=1e-12), seed
        num_forced += forced
        num_masked += len(case.model.written) > len(case.language)
    assert num_forced > NUM_MODELS
    assert num_masked > NUM_MODELS / 2


def test_forcing_text_to_its_very_end_would_change_it() -> None:
    """The twin of the test above that must fail: else it would show nothing."""
    num_changed = 0
    for seed in range(NUM_MODELS):
        case = random_case(seed)
        masked, _ = distribution(case.model, case.constraint, None)
        try:
            naive, _ = distribution(
                case.model, case.constraint, functools.partial(all_forced, case.tokenizer)
            )
            num_changed += naive != pytest.approx(masked, abs=1e-12)
        except LeftItsPath:
            num_changed += 1
    assert num_changed > NUM_MODELS / 4


EXACT = wire.SamplingParams(jump="exact")


def short_language(rng: random.Random) -> tuple[str, list[str]]:
    """A forced text, a choice, a forced text: few enough paths to walk in every tokenisation."""
    parts = [["".join(rng.choices("abc", k=5))], ["a", "bc"], ["".join(rng.choices("abc", k=3))]]
    pattern = "".join("(" + "|".join(part) + ")" for part in parts)
    return pattern, ["".join(chosen) for chosen in itertools.product(*parts)]


def test_exact_jumps_give_the_distribution_of_masks_alone_and_canonical_ones_may_not() -> None:
    """For a model that puts mass on every tokenisation. A text that is not the tokenizer's own is
    never written where jumps are canonical, so what follows it is another distribution.
    """
    num_changed = 0
    for seed in range(40):
        rng = random.Random(seed)
        tokenizer = random_tokenizer(rng)
        pattern, _ = short_language(rng)
        constraints = CallConstraints(tokenizer)
        constraint = constraints.compile(wire.Regex(pattern))
        model = SpellingModel(tokenizer, seed)
        masked, _ = distribution(model, constraint, None)
        exact, forced = distribution(model, constraint, constraints.forcing, EXACT)
        assert exact == masked
        assert forced == 0
        jumped, forced = distribution(model, constraint, constraints.forcing)
        assert sum(masked.values()) == pytest.approx(1.0)
        assert sum(jumped.values()) == pytest.approx(1.0)
        if jumped != pytest.approx(masked, abs=1e-9):
            num_changed += 1
            assert forced, "only forced tokens change it"
    assert num_changed > 10


def test_log_probabilities_are_of_tokens_that_were_sampled() -> None:
    constraints = CallConstraints(PairTokenizer([]))
    constraint = constraints.compile(wire.Regex("abcabc"))
    settings = functools.partial(
        GenerationSettings,
        max_tokens=20,
        eos_ids=(3,),
        prompt_len=0,
        constraint=constraint,
        forcing=constraints.forcing,
    )
    assert settings(wire.SamplingParams()).jump is not None
    assert settings(wire.SamplingParams(logprobs=0)).jump is None
    assert settings(EXACT).jump is None


@pytest.mark.parametrize(
    "asked", [*map(wire.Regex, REGEXES), *(wire.JsonSchema(json.dumps(one)) for one in SCHEMAS)]
)
def test_a_model_that_writes_canonical_tokens_gets_canonical_tokens(asked: wire.Constraint) -> None:
    """The shipped model's tokenizer; the model wants one instance, in the tokenizer's own
    tokens.
    """
    tokenizer = nano_tokenizer()
    constraints = constraints_of(tokenizer)
    compiled, drawn = constraints.compile(asked), Constrained(asked)
    prompt = tokenizer.encode("Write it as JSON:\n")
    for seed in range(30):
        text = drawn.example(seed)
        wanted = tokenizer.encode("Write it as JSON:\n" + text)
        assert wanted[: len(prompt)] == prompt
        wanted = [*wanted[len(prompt) :], tokenizer.eos_ids[0]]
        settings = GenerationSettings(
            wire.SamplingParams(),
            4 * len(wanted) + 50,
            tokenizer.eos_ids,
            len(prompt),
            compiled,
            constraints.forcing,
        )
        task, tokens = Generation(settings, 0), array("i", prompt)
        task.start(tokens)
        while task.finish is None:
            token = wanted[task.generated]
            assert compiled.mask(task.guide, task.left).allows(token), (text, task.generated)
            task.accept(token, tokens)
        assert list(tokens[len(prompt) :]) == wanted[:-1], text


def test_forced_text_is_tokenised_as_it_stands_behind_the_text_before_it() -> None:
    assert CONTEXT_TOKENS > 0
    tokenizer = PairTokenizer([("b", "a")])
    constraints = CallConstraints(tokenizer)
    constraint = constraints.compile(wire.Regex("aaaaaaaaaaaa"))
    assert (
        constraints.forcing(constraint, constraint.start, array("i", tokenizer.encode("ab"))) == ()
    )
    assert (
        constraints.forcing(constraint, constraint.start, array("i", tokenizer.encode("aa")))
        == (0,) * 12
    )
