"""The units of the package: which modules belong together, which units they may import, and through
which modules each library enters. `tests/test_architecture.py` holds the code to it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """Modules (each with all below it), and the units that they may import besides themselves."""

    modules: str
    may_import: str = ""


# Below: the ground that everything stands on; then the client's side; then the runtime, from the
# tree to the tensors.
UNITS = {
    "errors": Unit("lmprog.errors"),
    "config": Unit("lmprog.config lmprog.config_check", "errors"),
    "wire": Unit("lmprog.wire"),
    "journal": Unit("lmprog.journal", "errors wire"),
    "native": Unit("lmprog.native"),
    "linux": Unit("lmprog.linux"),
    "heap": Unit("lmprog.heap", "linux"),
    "weight_cache": Unit("lmprog.weight_cache", "native linux"),
    "transport": Unit("lmprog.transport", "errors wire"),
    "redis_server": Unit("lmprog.redis_server"),
    "launch": Unit("lmprog.launch", "errors config wire linux transport"),
    "fleet": Unit("lmprog.fleet", "errors config wire journal transport launch"),
    "ray": Unit("lmprog.ray", "errors transport launch fleet options metrics supervision server"),
    "tool_calls": Unit("lmprog.tool_calls", "errors wire"),
    # the client's side: no tokens, no tensors, no sockets
    "backends": Unit(
        "lmprog.backends",
        "errors config wire journal transport launch fleet ray tool_calls",
    ),
    "threads": Unit("lmprog.lang.ops.threads"),
    "ops": Unit("lmprog.lang.ops", "errors wire tool_calls threads"),
    "streaming": Unit("lmprog.lang.streaming", "errors wire tool_calls backends ops"),
    "checkpoints": Unit("lmprog.lang.checkpoints", "errors wire journal"),
    "branches": Unit(
        "lmprog.lang.branches",
        "errors wire journal tool_calls backends threads ops streaming checkpoints",
    ),
    "runs": Unit(
        "lmprog.lang.runs",
        "errors wire journal tool_calls backends threads ops streaming checkpoints branches",
    ),
    "rehearsal": Unit("lmprog.lang.rehearsal", "errors wire backends threads ops branches runs"),
    "evaluation": Unit(
        "lmprog.evaluation", "errors wire backends threads ops streaming branches runs"
    ),
    "lang": Unit(
        "lmprog.lang",
        "errors wire backends threads ops streaming checkpoints branches runs rehearsal evaluation",
    ),
    "facade": Unit(
        "lmprog lmprog.grammar lmprog.sglang",
        "errors lang backends ops streaming branches runs evaluation constraint ray",
    ),
    # integers and strings: everything here is tested without torch
    "radix": Unit("lmprog.radix", "errors"),
    "constraints": Unit("lmprog.constraints", "errors native linux wire"),
    "documents": Unit("lmprog.runtime.documents", "errors"),
    "text": Unit("lmprog.runtime.text", "errors wire documents tool_calls constraints"),
    "tier": Unit("lmprog.runtime.tier", "linux radix redis_server"),
    "scheduling": Unit(
        "lmprog.runtime.scheduling", "errors config heap wire radix constraints tier"
    ),
    "programs": Unit(
        "lmprog.runtime.programs", "errors heap wire transport radix constraints text scheduling"
    ),
    "constraint": Unit("lmprog.constrained", "errors wire ops constraints programs"),
    "testing": Unit("lmprog.testing", "errors wire backends constraint"),
    # tensors: they see batches, never requests
    "engine": Unit(
        "lmprog.runtime.engine",
        "errors config linux native redis_server weight_cache wire documents radix tier scheduling",
    ),
    "loop": Unit(
        "lmprog.runtime.loop lmprog.runtime.steps lmprog.runtime.steps_ahead",
        "errors wire transport scheduling programs",
    ),
    # what puts the parts together
    "simulation": Unit(
        "lmprog.simulation",
        "errors config wire transport radix constraints text tier scheduling programs loop",
    ),
    "kv_events": Unit("lmprog.runtime.kv_events", "errors config wire transport radix"),
    "ranks": Unit("lmprog.runtime.ranks", "errors config linux launch engine"),
    "process": Unit(
        "lmprog.runtime.main lmprog.runtime.assembly lmprog.runtime",
        "errors config heap wire native tool_calls transport launch documents text scheduling "
        "programs loop engine ranks kv_events",
    ),
    "quality": Unit("lmprog.runtime.quality", "errors config text scheduling engine"),
    "model_report": Unit(
        "lmprog.runtime.model_report", "errors config radix documents text engine"
    ),
    # the gateway: a client of the wire, with no tokens and no tensors
    "options": Unit("lmprog.server.options", "errors config"),
    "http": Unit("lmprog.server.http", "errors heap wire options fairness"),
    "fairness": Unit("lmprog.server.fairness", "errors wire options"),
    "link": Unit(
        "lmprog.server.link",
        "errors wire transport launch fairness",
    ),
    "metrics": Unit("lmprog.server.observability", "errors wire link fairness"),
    "gateway": Unit(
        "lmprog.server.gateway",
        "errors wire options http link fairness metrics",
    ),
    "operations": Unit(
        "lmprog.server.operations lmprog.server.page",
        "errors wire launch http link metrics gateway",
    ),
    "supervision": Unit(
        "lmprog.server.supervision", "errors wire transport launch fleet metrics gateway"
    ),
    "dialects": Unit(
        "lmprog.server.openai lmprog.server.sglang lmprog.server.responses lmprog.server.anthropic "
        "lmprog.server.programs lmprog.server.local",
        "errors config wire redis_server tool_calls options http fairness link gateway operations",
    ),
    "server": Unit(
        "lmprog.server",
        "errors launch options http link metrics gateway operations supervision dialects",
    ),
    "gpu_report": Unit("lmprog.runtime.engine.gpu_report", "errors config wire scheduling engine"),
    "cli": Unit(
        "lmprog.cli",
        "errors config wire linux native weight_cache transport launch gpu_report quality "
        "model_report backends ops branches runs threads lang evaluation facade constraint "
        "simulation server options http gateway supervision ray",
    ),
}

# Through which modules a library enters. What is not listed is not imported by `lmprog` at all.
_HTTP_LIBRARIES = ("fastapi", "starlette", "uvicorn", "uvloop", "h11", "anyio", "prometheus_client")
_MODEL_LIBRARIES = ("safetensors", "huggingface_hub", "transformers")
_API_LIBRARIES = ("openai", "anthropic", "litellm", "httpx2", "jsonschema")
DOORS = {
    "zmq": "lmprog.transport",
    "msgspec": "lmprog.wire lmprog.journal lmprog.fleet lmprog.cli.run lmprog.launch.parent_pipe "
    "lmprog.lang.ops.sampling lmprog.lang.checkpoints lmprog.runtime.kv_events "
    "lmprog.backends.blackbox lmprog.backends.caching lmprog.server",
    **dict.fromkeys(_HTTP_LIBRARIES, "lmprog.server"),
    "fastapi": "lmprog.server lmprog.ray.serve_gateway",
    "cuda": "lmprog.runtime.engine.device",
    "torch": "lmprog.runtime.engine lmprog.cli.doctor",
    "pandas": "lmprog.evaluation",
    "numpy": "lmprog.constraints lmprog.evaluation.statistics lmprog.runtime.engine lmprog.runtime.quality lmprog.simulation "
    "lmprog.runtime.scheduling.batch lmprog.runtime.scheduling.sampling_requests",
    "tokenizers": "lmprog.runtime.text.tokenizer lmprog.runtime.text.quoting",
    "jinja2": "lmprog.runtime.text.chat_template",
    **dict.fromkeys(
        _MODEL_LIBRARIES, "lmprog.runtime.engine.model lmprog.runtime.engine.torch_engine"
    ),
    "llguidance": "lmprog.constraints",
    "pydantic": "lmprog.lang lmprog.server.http",
    "pydantic_core": "lmprog.server.http",
    "outlines": "lmprog.lang.ops.outlines_terms",
    "outlines_core": "lmprog.lang.sglang_engine",
    "yaml": "lmprog.server.options.configuration lmprog.ray.llm_names",
    "opentelemetry": "lmprog.server.observability.spans lmprog.lang.runs.trace_file",
    **dict.fromkeys(_API_LIBRARIES, "lmprog.backends"),
    "tqdm": "lmprog.evaluation.evaluating lmprog.lang.runs.run_batch lmprog.runtime.engine.torch_engine lmprog.cli.batch",
    "rich": "lmprog.cli",
    "ray": "lmprog.ray",
    "flashinfer": "lmprog.runtime.engine.device.flashinfer_reader",
    "typing_extensions": "lmprog.lang lmprog.backends lmprog.evaluation",
}
