"""One choice of a chat's stream, as chunks: thoughts, contents, calls, and its end.

Knows shapes and texts; knows no requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lmprog import wire
from lmprog.calls.harmony import ThoughtText
from lmprog.server.openai import answers
from lmprog.server.openai.tool_calls import AnswerPart
from lmprog.server.openai.tools import Toolbox


class ChoiceStream:
    """One choice of a stream: which parts of its text are content, and which are calls."""

    def __init__(
        self, box: Toolbox, sampling: wire.SamplingParams, wants_ids: bool, index: int
    ) -> None:
        self._index = index
        self._reader = box.reader()
        self._sampling = sampling
        self._wants_ids = wants_ids
        self._num_calls = 0
        self._id = box.id
        self._named = box.tools[0].name if box.streams_arguments else None
        """The one function that is called: all text is its arguments, which go out as they come."""

    def opening(self) -> answers.ChunkChoice:
        return answers.ChunkChoice(self._index, answers.ChatDelta(role="assistant", content=""))

    def add(
        self, text: str, logprobs: Sequence[wire.TokenLogprob] = (), tags: Sequence[int] = ()
    ) -> list[answers.ChunkChoice]:
        """More text has come, and the log-probabilities of the tokens that are whole now."""
        if self._named is None:
            choices = [self._part(part) for part in self._reader.feed(text, tags)]
        else:
            choices = [self._arguments(text)] if text else []
        if logprobs:
            last = (
                choices.pop()
                if choices
                else answers.ChunkChoice(self._index, answers.ChatDelta(content=""))
            )
            choices.append(msgspec.structs.replace(last, logprobs=answers.chat_logprobs(logprobs)))
        return choices

    def end(self, output: wire.Output) -> list[answers.ChunkChoice]:
        """Nothing more will come: what was held back, and the reason."""
        parts = self._reader.finish(output) if self._named is None else []
        choices = [self._part(part) for part in parts]
        finish = answers.finish_of(output)
        reason = "tool_calls" if self._num_calls and finish == "stop" else finish
        stop_reason = None if self._num_calls else answers.stop_reason_of(output, self._sampling)
        return [
            *choices,
            answers.ChunkChoice(
                self._index,
                answers.ChatDelta(),
                reason,
                None,
                stop_reason,
                output.tokens if self._wants_ids else msgspec.UNSET,
            ),
        ]

    def _arguments(self, text: str) -> answers.ChunkChoice:
        """More of the named function's arguments; the first part says whose they are."""
        if self._num_calls:
            call = answers.AnsweredCall(answers.Function(text), index=0)
        else:
            call = answers.AnsweredCall(
                answers.Function(text, self._named or ""), self._id, "function", index=0
            )
        self._num_calls = 1
        return answers.ChunkChoice(self._index, answers.ChatDelta(tool_calls=[call]))

    def _part(self, part: AnswerPart) -> answers.ChunkChoice:
        if isinstance(part, str):
            return answers.ChunkChoice(self._index, answers.ChatDelta(content=part))
        if isinstance(part, ThoughtText):
            return answers.ChunkChoice(self._index, answers.ChatDelta(reasoning_content=part.text))
        call = answers.AnsweredCall(
            answers.Function(part.arguments, part.name),
            part.id,
            "function",
            index=self._num_calls,
        )
        self._num_calls += 1
        return answers.ChunkChoice(self._index, answers.ChatDelta(tool_calls=[call]))
