"""Gens whose text is as likely as if no mask had been there (`SamplingParams.faithful`): what goes
with them, their two rounds of texts, and which of these is kept.

What the numbers mean is known to `scheduling.particles`. Only calls that ask need this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lmprog.errors import not_allowed
from lmprog.runtime.programs.clients import GenerateRun
from lmprog.runtime.programs.result_selection import ResultSelector
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.particles import Particle, TextPlace, chosen, tree_of, weights
from lmprog.runtime.scheduling.sampling_requests import uniform
from lmprog.runtime.scheduling.sequence import SequenceGroup
from lmprog.runtime.text.stream import TextStream
from lmprog.wire import SAMPLING_OPTIONS, Generate

_DRAWS_ALL = ("top_p", "top_k", "min_p", "repetition_penalty")
"""With these a text that fits might have been impossible, or its logits are not known."""


def check_faithful(op: Generate) -> None:
    """Raises `InvalidParameter` for what does not go with it."""
    sampling = op.sampling

    def refuse(name: str, value: object, allowed: str, why: str) -> None:
        raise not_allowed(name, value, allowed, f"{why}, with faithful={sampling.faithful}")

    why = "one of its texts is the result"
    if sampling.n != 1:
        refuse("n", sampling.n, "1 and fork for several", why)
    if op.keep != "first":
        refuse("keep", op.keep, "'first'", why)
    for name in _DRAWS_ALL:
        value, line = getattr(sampling, name), SAMPLING_OPTIONS[name]
        if value != line.default and not (name == "top_k" and value <= 0):
            refuse(name, value, repr(line.default), "the model's own distribution is drawn from")
    if sampling.temperature == 0.0:
        refuse("temperature", 0.0, "0 < x", "greedy texts are not drawn")
    if op.thought is not None:
        refuse("thought", "a budget", "none", "closing a thought is not drawn")


MakeTexts = Callable[[SequenceGroup, range], list[TextStream]]
"""Adds the sequences of texts of these numbers to a group; their streams."""


@dataclass(slots=True)
class FaithfulSelector(ResultSelector):
    """`n` grows with the second round."""

    seed: int = 0
    first: list[Particle] = field(default_factory=list)
    second: list[Particle] = field(default_factory=list)
    root: TextPlace | None = None
    """What the first round has seen, once it is over."""

    def winner(self) -> int | None:
        if len(self.finished) < self.n:
            return None
        found = weights(self.first, self.second, self.root)
        return chosen(found, uniform(self.seed - 1, 0))


def faithful_run(
    op: Generate,
    seed: int,
    group: SequenceGroup,
    make: MakeTexts,
    follow: Callable[[SequenceGroup], SequenceGroup],
) -> GenerateRun:
    """The run of a gen, whose group has no sequences yet. `follow` makes a group that goes on with
    the work of another. Raises `InvalidParameter`.
    """
    check_faithful(op)
    num_all = op.sampling.faithful
    num_first = (num_all + 1) // 2
    streams = make(group, range(num_first))
    selector = FaithfulSelector("faithful", num_first, 0, seed=seed)
    selector.first = _begin(group, None)
    run = GenerateRun(group, streams, selector)

    def more() -> SequenceGroup | None:
        if len(selector.finished) < selector.n:
            return None
        run.more = None
        selector.root = root = tree_of(selector.first)
        if root is None:
            return None  # the constraint allows the empty text only
        following = follow(run.group)
        run.streams += make(following, range(num_first, num_all))
        run.outputs += [None] * (num_all - num_first)
        selector.n, selector.second = num_all, _begin(following, root)
        return following

    run.more = more
    return run


def _begin(group: SequenceGroup, root: TextPlace | None) -> list[Particle]:
    """Makes particles of the texts of a group."""
    made = []
    for sequence in group.sequences:
        assert isinstance(sequence.task, Generation)
        sequence.task.particle = particle = Particle(root)
        made.append(particle)
    return made
