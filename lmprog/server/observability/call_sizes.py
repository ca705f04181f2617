"""How large calls are: what they ask for, and the tokens that they had, as histograms."""

from __future__ import annotations

from collections.abc import Callable

from lmprog import wire
from lmprog.server.observability.runtime_metrics import RuntimeHistogram

_RESULTS = (1, 2, 4, 8, 16, 32, 64, 128)
_TIMES = (0, 1, 2, 4, 8, 16, 32, 64)
_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


class CallSizes:
    """The histograms of one server's calls."""

    def __init__(self, histogram: Callable[[str, str, tuple[float, ...]], RuntimeHistogram]):
        """`histogram` makes one of a name, its meaning and its bounds."""
        self._wanted_n = histogram("request_params_n", "Results asked for by a call.", _RESULTS)
        self._wanted_tokens = histogram(
            "request_params_max_tokens", "max_tokens of a call, where it has one.", _TOKENS
        )
        self._prompts = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._computed = histogram(
            "request_prefill_kv_computed_tokens",
            "Tokens of a prompt that the cache did not have.",
            _TOKENS,
        )
        self._generated = histogram(
            "request_generation_tokens", "Tokens of all results of a call.", _TOKENS
        )
        self.longest = histogram(
            "request_max_num_generation_tokens", "Tokens of the longest result of a call.", _TOKENS
        )
        self._preemptions = histogram("num_retractions", "Preemptions of a call.", _TIMES)

    def asked(self, sampling: wire.SamplingParams) -> None:
        self._wanted_n.observe(sampling.n)
        if sampling.max_tokens is not None:
            self._wanted_tokens.observe(sampling.max_tokens)

    def ended(self, usage: wire.Usage) -> None:
        self._computed.observe(max(0, usage.prompt - usage.cached))
        self._prompts.observe(usage.prompt)
        self._generated.observe(usage.generated)
        self._preemptions.observe(usage.preemptions)
