"""What several files of tests do with the scripted server."""

from __future__ import annotations

import lmprog
from tests.backends.scripted_api import Model, ScriptedApi, document

FACTS = document(
    "The capital of France is Paris. It is old.", "The capital of Italy is Rome. It is old."
)


@lmprog.function
def capital(s: lmprog.Branch, country: str) -> str:
    s.append(f"The capital of {country} is")
    return s.gen("answer", max_tokens=8, stop=".").value


def chat(answers: dict[str, str]) -> Model:
    """A model that answers the last user's turn."""

    def model(prompt: str) -> str:
        last = prompt.rpartition("<user>")[2].partition("</>")[0]
        begun = prompt.rpartition("<assistant>")[2]
        return answers.get(last, "").removeprefix(begun)

    return model


def on(api: ScriptedApi, **options: object) -> lmprog.OpenAI:
    return lmprog.OpenAI("m", base_url=api.base_url, **options)  # type: ignore[arg-type]
