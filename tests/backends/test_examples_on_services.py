"""The examples on the strict doubles of services: each runs, or is refused here with a reason; the
service itself refuses none of their requests.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog.errors import NotSupported, ValidationFailed
from lmprog.testing import StrictAnthropic, StrictOpenAI

pytest.importorskip("openai")
pytest.importorskip("anthropic")
Service = StrictOpenAI | StrictAnthropic
EXAMPLES = sorted(path.stem for path in (Path(__file__).parents[2] / "examples").glob("*.py"))
CHATS = {"act_tools", "ask_again", "batch_progress", "multi_turn_chat"}
"""Those whose text is in turns: they run on chats, and on nothing else."""
ONLY_RUNTIMES = {"beam_search", "drafted_extraction"}
"""Those that ask for what only lmprog's runtime has."""
CONSTRAINED = {
    "extract_json", "few_shot_select", "judge", "pattern_pieces", "plan_and_execute", "react_tools",
    "reflection", "skeleton_of_thought", "streaming", "tree_of_thought", "two_models",
}  # fmt: skip
"""Those whose constraints a completion is only held to afterwards; the double writes "ok"."""


def shown(name: str) -> lmprog.Program[..., Any]:
    """The program that an example names."""
    module = importlib.import_module(f"examples.{name}")
    [program] = re.findall(r"\.py::(\w+)", module.__doc__ or "")
    found: lmprog.Program[..., Any] = getattr(module, program)
    return found


def outcome(name: str, make: Callable[[], Service], **options: Any) -> type[BaseException] | None:
    """How the program ended: None, or the kind of all errors that ended it."""
    with make() as service, service.connect(**options) as backend:
        try:
            shown(name).using(backend=backend).run()
        except lmprog.Paused:
            assert service.requests
        except BaseExceptionGroup as group:
            [kind] = {type(error) for error in group.exceptions}
            return kind
        except lmprog.LmprogError as error:
            return type(error)
        assert service.requests
        return None


@pytest.mark.parametrize("make", [StrictOpenAI, StrictAnthropic])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_turns_runs_on_chats(name: str, make: Callable[[], Service]) -> None:
    assert outcome(name, make) == (None if name in CHATS else NotSupported)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_without_turns_runs_on_completions(name: str) -> None:
    expected: type[BaseException] | None = None
    if name in CHATS | ONLY_RUNTIMES:
        expected = NotSupported
    elif name in CONSTRAINED:
        expected = ValidationFailed
    found = outcome(name, StrictOpenAI, is_chat_model=False, constraints="best_effort")
    assert found == expected
