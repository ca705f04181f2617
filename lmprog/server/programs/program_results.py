"""What a program's calls came to, as JSON: the wire's replies under the client's names.

Knows replies and errors; knows no connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmprog import wire
from lmprog.errors import from_wire
from lmprog.server.http.http_errors import problem_of
from lmprog.server.programs.translation import NamedCall

TOKENS = ("prompt", "cached", "generated", "forced", "computed", "drafted", "accepted")
"""Fields of `wire.Usage` that count tokens; here their names end in `_tokens`."""
NAMES = {
    name: f"{name}_tokens" if name in TOKENS else name for name in wire.Usage.__struct_fields__
}


def result_of(asked: NamedCall, reply: wire.Reply) -> dict[str, Any]:
    """The value of one call. A failure is a value, too: the other calls of the program have
    theirs.
    """
    match reply:
        case wire.CallDone():
            outputs = [_output(output) for output in reply.outputs]
            following = [_likely(*one) for one in reply.next_logprobs]
            return {
                "type": "gen",
                "text": reply.outputs[0].text,
                "outputs": outputs,
                "usage": usage_of(reply.usage),
                **({"constraint_left_out": reply.left_out} if reply.left_out else {}),
                **_logprobs("prompt_logprobs", reply.prompt_logprobs),
                **({"next_logprobs": following} if following else {}),
            }
        case wire.Chosen():
            options = [
                {
                    "text": text,
                    "score": option.score,
                    "probability": option.probability,
                    "logprobs": option.logprobs,
                    **({"baseline": option.baseline} if option.baseline else {}),
                    **({"tokens": option.tokens} if option.tokens else {}),
                }
                for text, option in zip(asked.choices, reply.options, strict=True)
            ]
            return {
                "type": "select",
                "index": reply.index,
                "text": asked.choices[reply.index],
                "options": options,
                "usage": usage_of(reply.usage),
            }
        case wire.TextIs():
            return {"type": "read", "text": reply.text, "num_tokens": reply.num_tokens}
        case wire.Failed():
            problem = problem_of(from_wire(reply.code, reply.message, reply.details))
            error = {
                "message": problem.message,
                "code": problem.code,
                "param": asked.place,
                "status": problem.status,
            }
            return {"type": "error", "error": error}
    raise AssertionError(f"a call was answered by {type(reply).__name__}")


def usage_of(usage: wire.Usage) -> dict[str, Any]:
    """Tokens by what happened to them, preemptions, and times."""
    return {name: getattr(usage, field) for field, name in NAMES.items()}


def total(used: Sequence[wire.Usage]) -> dict[str, Any]:
    """The work of the whole program."""
    return {name: sum(getattr(one, field) for one in used) for field, name in NAMES.items()}


def _output(output: wire.Output) -> dict[str, Any]:
    made: dict[str, Any] = {
        "text": output.text,
        "tokens": output.tokens,
        "finish_reason": output.finish,
        "stopped_by": output.stopped_by,
    }
    if output.score is not None:
        made["score"] = output.score
    for name in ("seam", "rest"):
        if value := getattr(output, name):
            made[name] = value
    if output.healed is not None:
        made["healed"] = output.healed
    if output.forced:
        made["forced"] = output.forced
    return {**made, **_logprobs("logprobs", output.logprobs)}


def _likely(token: int, text: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "text": text, "logprob": logprob}


def _logprobs(name: str, given: Sequence[wire.TokenLogprob]) -> dict[str, Any]:
    """Nothing where none were asked for."""
    found = [
        {
            "token": one.token,
            "text": one.text,
            "logprob": one.logprob,
            "top": [_likely(*likely) for likely in one.top],
        }
        for one in given
    ]
    return {name: found} if found else {}
