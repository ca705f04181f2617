"""DSPy's optimiser, as it is installed, on `lmprog serve`: answers are of their types, and prompts are
found in the cache.

Runs where the extra `recipes` is installed; the recipe is in docs/server.md. What the model says is
not looked at.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")  # else it asks the network for prices
dspy: Any = pytest.importorskip("dspy")

import pydantic  # noqa: E402

from tests.server.process import served  # noqa: E402

REVIEWS = ("I loved it.", "The room was dirty.", "What a lovely hotel!", "The concert was boring.")


class SchemaAdapter(dspy.JSONAdapter):  # type: ignore[misc]
    """Asks for the signature's own schema, also of a model that is in no list."""

    def __call__(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: Any, inputs: Any
    ) -> Any:
        fields: dict[str, Any] = {
            name: (field.annotation, ...) for name, field in signature.output_fields.items()
        }
        answer = pydantic.create_model("Answer", **fields)
        wanted = {**lm_kwargs, "response_format": answer}
        return dspy.ChatAdapter.__call__(self, lm, wanted, signature, demos, inputs)


class Sentiment(dspy.Signature):  # type: ignore[misc]
    """The sentiment of a review."""

    review: str = dspy.InputField()
    sentiment: Literal["positive", "negative"] = dspy.OutputField()


@pytest.mark.filterwarnings("ignore")
def test_the_optimiser_bootstraps_demonstrations_that_later_prompts_share() -> None:
    examples = [
        dspy.Example(review=review, sentiment="positive").with_inputs("review")
        for review in REVIEWS
    ]
    with served() as server:
        lm = dspy.LM(
            "openai/nano", api_base=f"{server.url}/v1", api_key="none", temperature=0.0,
            max_tokens=64, cache=False,
        )  # fmt: skip
        with dspy.context(lm=lm, adapter=SchemaAdapter()):
            optimiser = dspy.BootstrapFewShot(
                metric=lambda example, answer, trace=None: True, max_bootstrapped_demos=2
            )
            better = optimiser.compile(dspy.Predict(Sentiment), trainset=examples)
            answers = [better(review=review).sentiment for review in ("A fine day.", "It rained.")]
        usages = [dict(one["usage"]) for one in lm.history]
    assert sum(bool(demo.get("augmented")) for demo in better.demos) == 2
    assert set(answers) <= {"positive", "negative"}
    last = usages[-1]
    assert last["prompt_tokens_details"]["cached_tokens"] > last["prompt_tokens"] / 2
