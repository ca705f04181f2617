"""Steps of the real scheduler without a model: sequences go in, and each step samples one token for
all of them. Knows no clock and no workload.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from typing import Any

from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.logits_requests import collect_requests
from lmprog.runtime.scheduling.plan import Plan
from lmprog.runtime.scheduling.sampling_requests import SampleResult, StepResults
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.wire import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
TOKEN = 7


def submit(
    scheduler: Scheduler, tokens: Items[int], answer: int, num_settled: int = 0, **fields: Any
) -> SequenceGroup:
    """A generation of `answer` tokens behind `tokens`, in a group with these fields."""
    group = SequenceGroup(prompt_len=len(tokens), **fields)
    settings = GenerationSettings(GREEDY, answer, (), len(tokens))
    held = tokens if isinstance(tokens, array) else array("i", tokens)
    sequence = Sequence(group, held, Generation(settings, 0))
    sequence.num_settled = num_settled
    group.sequences.append(sequence)
    scheduler.submit(group)
    return group


def commit(scheduler: Scheduler, plan: Plan) -> Any:
    """What came of the plan's sequences where each one that samples gets the same token."""
    requests = collect_requests(plan)
    results = StepResults((SampleResult(TOKEN, 0.0),) * len(requests.samples), ())
    return scheduler.commit(plan, requests, results)
