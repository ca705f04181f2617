"""What is counted is what happened; names that boards know; nothing private in a label."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from lmprog import wire
from lmprog.server.observability.meters import MOST_UNCOUNTED, Meters
from lmprog.server.observability.runtime_metrics import (
    QuickCounter,
    RouteSeconds,
    RuntimeFigures,
)
from tests.server.fake_runtime import Fake, asking

BOARD = Path(__file__).parents[2] / "docs" / "grafana" / "lmprog.json"
MIRRORED = (
    "num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries "
    "prefix_cache_hits "
    "prompt_tokens prompt_tokens_cached generation_tokens time_to_first_token_seconds "
    "inter_token_latency_seconds "
    "e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds "
    "request_decode_time_seconds "
    "num_preemptions request_success admission_rejections corrupted_requests cache_hit_rate "
    "evicted_tokens "
    "num_retracted_reqs kv_evictable_tokens num_aborted_requests scheduler_idle_seconds "
    "grammar_compilation_time_seconds request_inference_time_seconds "
    "request_time_per_output_token_seconds request_prefill_kv_computed_tokens request_params_n "
    "request_params_max_tokens iteration_tokens request_max_num_generation_tokens "
    "num_running_reqs num_queue_reqs token_usage num_used_tokens max_total_num_tokens "
    "num_retracted_requests gen_throughput cached_tokens num_requests num_so_requests "
    "num_retractions spec_decode_num_draft_tokens spec_decode_num_accepted_tokens"
)
"""Of vLLM and SGLang, with our prefix."""
OURS = (
    "fork_shared_tokens programs engine_restarts wait_passes invariant_failures "
    "computed_tokens forced_tokens ahead_tokens ahead_used_tokens ahead_wasted_tokens"
)
Samples = dict[str, float]


async def scraped(client: httpx2.AsyncClient) -> tuple[Samples, str]:
    """All samples by name and labels, but for the model's; the names of histograms' parts are
    whole.
    """
    response = await client.get("/metrics")
    assert response.status_code == 200, response.text
    found: Samples = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            found[
                " ".join(
                    [sample.name, *(f"{name}={value}" for name, value in sorted(labels.items()))]
                )
            ] = sample.value
    return found, response.text


def session(
    fake: Fake, asks: list[tuple[str, dict[str, Any]]], **settings: Any
) -> tuple[Samples, str]:
    """What is scraped after these requests."""

    async def run() -> tuple[Samples, str]:
        async with asking(fake, **settings) as (client, _):
            for path, body in asks:
                await client.post(path, json=body)
            return await scraped(client)

    return asyncio.run(run())


def test_requests_are_counted_as_they_were(fake: Fake) -> None:
    body = {"prompt": "abcdefgh", "max_tokens": 5, "ignore_eos": True}
    samples, _ = session(
        fake, [("/v1/completions", body), ("/v1/completions", {**body, "stream": True})]
    )
    assert samples["lmprog_request_success_total finished_reason=length"] == 2
    assert samples["lmprog_generation_tokens_total"] == 10
    assert samples["lmprog_e2e_request_latency_seconds_count"] == 2
    assert samples["lmprog_time_to_first_token_seconds_count"] == 2
    assert samples["lmprog_request_prompt_tokens_count"] == 2
    assert samples["lmprog_prompt_tokens_total"] >= 16
    assert samples["lmprog_request_params_max_tokens_sum"] == 10
    assert samples["lmprog_request_params_n_sum"] == 2
    assert samples["lmprog_request_inference_time_seconds_count"] == 2
    assert samples["lmprog_request_time_per_output_token_seconds_count"] == 2
    computed = samples["lmprog_request_prefill_kv_computed_tokens_sum"]
    cached = samples["lmprog_prompt_tokens_cached_total"]
    assert computed + cached == samples["lmprog_prompt_tokens_total"]
    assert 0 < samples["lmprog_prompt_tokens_cached_total"] < samples["lmprog_prompt_tokens_total"]
    assert samples["lmprog_prefix_cache_hits_total"] <= samples["lmprog_prefix_cache_queries_total"]
    assert samples["lmprog_http_requests_total method=POST route=/v1/completions status=200"] == 2
    assert samples["lmprog_wait_passes_count"] == 2
    assert samples["lmprog_up"] == 1
    assert samples["lmprog_iteration_tokens_total_sum"] == samples["lmprog_computed_tokens_total"]
    assert samples["lmprog_iteration_tokens_total_count"] == samples["lmprog_steps_total"]
    assert samples["lmprog_request_max_num_generation_tokens_sum"] == 10
    assert samples["lmprog_cached_tokens_total"] == cached
    assert samples["lmprog_num_requests_total"] == 2
    assert samples["lmprog_num_so_requests_total"] == 0
    assert samples["lmprog_max_total_num_tokens"] == samples["lmprog_kv_pool_tokens"] > 0


def test_the_speed_is_that_between_two_readings() -> None:
    now = [10.0]
    figures = RuntimeFigures(lambda: "m", lambda: now[0])

    def speed() -> float:
        (family,) = [one for one in figures.collect() if one.name == "lmprog_gen_throughput"]
        return float(family.samples[0].value)

    figures.see({"pid": 1.0, "generated_tokens": 50.0})
    assert speed() == 0.0
    now[0] = 12.0
    figures.see({"pid": 1.0, "generated_tokens": 150.0})
    assert speed() == 50.0
    figures.see({"pid": 2.0, "generated_tokens": 3.0})
    assert speed() == 50.0, "a new runtime begins to count at 0"


def test_every_mirrored_name_and_our_own_are_there(fake: Fake) -> None:
    _, text = session(fake, [])
    families = set(re.findall(r"^# TYPE lmprog_(\S+?)(?:_total)? ", text, re.MULTILINE))
    assert set(MIRRORED.split()) <= families
    assert set(OURS.split()) <= families


def test_load_is_told_by_the_names_that_foreign_routers_scrape(fake: Fake) -> None:
    samples, _ = session(fake, [("/v1/completions", {"prompt": "abcd", "max_tokens": 5})])
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert samples[f"vllm:{name}"] == samples[f"lmprog_{name}"]
    pages, size = fake.scheduler.pages.num_pages, fake.scheduler.config.page_size
    assert samples[f"vllm:cache_config_info block_size={size} num_gpu_blocks={pages}"] == 1


def test_every_metric_of_the_board_is_told(fake: Fake) -> None:
    samples, _ = session(fake, [("/v1/completions", {"prompt": "a", "max_tokens": 2})])
    told = {key.split()[0] for key in samples}
    board = json.loads(BOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    named = {name for expression in asked for name in re.findall(r"lmprog_\w+", expression)}
    assert len(named) > 30
    quiet = {"lmprog_request_failures_total"}  # by code: there when something has failed
    assert named - quiet <= told


def test_every_metric_of_the_page_is_told(fake: Fake) -> None:
    async def run() -> str:
        async with asking(fake, api_keys=("one",)) as (client, _):
            client.headers["x-api-key"] = "one"
            return (await scraped(client))[1]

    text = asyncio.run(run())
    page = (
        (BOARD.parents[1] / "server-operating.md")
        .read_text()
        .partition("## Metrics")[2]
        .partition("\n## ")[0]
    )
    table = "".join(
        line.partition("|")[2].partition("|")[2]
        for line in page.splitlines()
        if line.startswith("| ")
    )
    named = set(re.findall(r"`([a-z0-9_]+)", table))
    families = set(re.findall(r"^# TYPE lmprog_(\S+?)(?:_total)? ", text, re.MULTILINE))
    told = {name for name in families if not name.endswith("_created")}
    assert named - told == set(), "the page names what is not there"
    assert told - named == set(), "the page does not name them"


def test_openmetrics_are_given_where_they_are_asked_for_and_name_the_same(fake: Fake) -> None:
    async def run() -> tuple[httpx2.Response, httpx2.Response]:
        async with asking(fake, api_keys=("one",)) as (client, _):
            client.headers["x-api-key"] = "one"
            await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
            wanted = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5"
            plain = await client.get("/metrics")
            return plain, await client.get("/metrics", headers={"accept": wanted})

    plain, strict = asyncio.run(run())
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert strict.headers["content-type"].startswith("application/openmetrics-text; version=1.")
    told = [
        {
            sample.name
            for family in read(answer.text)
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        for read, answer in (
            (text_string_to_metric_families, plain),
            (openmetrics.text_string_to_metric_families, strict),
        )
    ]
    assert told[0] == told[1] > {"lmprog_key_prompt_tokens_total", "vllm:num_requests_running"}


def test_failures_and_what_is_left_are_counted(fake: Fake) -> None:
    samples, _ = session(
        fake,
        [
            ("/v1/completions", {"prompt": "x" * 3000, "max_tokens": 5}),
            ("/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 5}),
        ],
        max_waiting=2,
    )
    assert samples["lmprog_request_failures_total code=context_overflow"] == 1
    assert samples["lmprog_admission_rejections_total reason=too_many_results"] == 1
    assert samples["lmprog_num_aborted_requests_total"] == 0


def test_nothing_that_a_client_sends_becomes_a_label(fake: Fake) -> None:
    async def run() -> str:
        async with asking(fake) as (client, _):
            await client.post(
                "/v1/completions",
                json={"prompt": "secret words", "max_tokens": 2, "user": "secret"},
            )
            await client.request("SECRET", "/v1/completions")
            await client.get("/secret/path", headers={"x-request-id": "secret-id"})
            return (await client.get("/metrics")).text

    assert "secret" not in asyncio.run(run()).lower()


def test_a_scrape_is_answered_while_there_is_no_runtime(fake: Fake) -> None:
    async def run() -> tuple[Samples, Samples]:
        async with asking(fake) as (client, gateway):
            await client.post(
                "/v1/completions", json={"prompt": "a", "max_tokens": 3, "ignore_eos": True}
            )
            before, _ = await scraped(client)
            gateway.link.replace(None)
            after, text = await scraped(client)
            assert 'model_name="fake"' in text
            return before, after

    before, after = asyncio.run(run())
    assert (before["lmprog_up"], after["lmprog_up"]) == (1, 0)
    assert after["lmprog_generation_tokens_total"] == before["lmprog_generation_tokens_total"] == 3


def test_counters_go_on_when_another_runtime_begins_at_0() -> None:
    figures = RuntimeFigures(lambda: "m", lambda: 0.0)
    for pid, tokens in ((1.0, 5.0), (1.0, 8.0), (2.0, 0.0), (2.0, 4.0), (3.0, 1.0)):
        figures.see(
            {
                "pid": pid,
                "generated_tokens": tokens,
                "wait_passes_le_1": tokens,
                "wait_passes_le_inf": 1.0,
            }
        )
    (tokens_family,) = [one for one in figures.collect() if one.name == "lmprog_generation_tokens"]
    (waits,) = [one for one in figures.collect() if one.name == "lmprog_wait_passes"]
    assert tokens_family.samples[0].value == 8 + 4 + 1
    assert [(s.labels.get("le"), s.value) for s in waits.samples if s.name.endswith("_bucket")] == [
        ("1.0", 13.0),
        ("+Inf", 16.0),
    ]


def test_gaps_between_texts_are_by_token_and_by_result() -> None:
    now = [0.0]
    meters = Meters(lambda: now[0], lambda: "m")
    meters.asked(wire.Generate(1, 7, stream=True), "")
    for at, index, count in ((1.0, 0, 1), (1.5, 1, 1), (2.0, 0, 4), (2.5, 1, 0)):
        now[0] = at
        meters.replied(wire.Delta(7, index, "x", count))
    value = meters.registry.get_sample_value
    labels = {"model_name": "m"}
    assert value("lmprog_time_to_first_token_seconds_sum", labels) == 1.0
    assert value("lmprog_inter_token_latency_seconds_count", labels) == 1
    assert value("lmprog_inter_token_latency_seconds_sum", labels) == pytest.approx(0.25)
    meters.dropped(7)
    assert value("lmprog_num_aborted_requests_total", labels) == 1
    meters.replied(wire.Failed(call=7, code="model", message=""))
    assert value("lmprog_corrupted_requests_total", labels) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="they are read from /proc")
def test_the_process_of_the_gateway_is_counted_by_its_usual_names(fake: Fake) -> None:
    samples, _ = session(fake, [])
    assert samples["process_resident_memory_bytes"] > 10_000_000
    assert samples["process_cpu_seconds_total"] > 0
    assert samples["process_open_fds"] > 0
    assert samples["process_start_time_seconds"] > 1_600_000_000


def test_quick_counters_say_what_those_of_prometheus_say() -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    counter = Counter(
        "lmprog_http_requests", "HTTP requests.", ["route", "status"], registry=theirs
    )
    names, bounds = ["model_name", "route"], (0.5, 1.0, 300.0)
    seconds = Histogram("lmprog_seconds", "Whole.", names, buckets=bounds, registry=theirs)
    quick = QuickCounter("lmprog_http_requests", "HTTP requests.", ("route", "status"))
    quick_seconds = RouteSeconds("lmprog_seconds", "Whole.", bounds)
    ours.register(quick)
    ours.register(quick_seconds)
    for route, status, value in (("/a", "200", 0.5), ("/b", "0", 7.0), ("/a", "200", 1000.0)):
        counter.labels(route, status).inc()
        quick.add(route, status)
        seconds.labels("m", route).observe(value)
        quick_seconds.observe(("m", route), value)
    counter.labels("/a", "503").inc(0)
    quick.add("/a", "503", by=0)

    def said(registry: CollectorRegistry) -> str:
        return re.sub(r"(_created.*) \S+", r"\1 then", generate_latest(registry).decode())

    assert said(ours) == said(theirs)


def done(call: int, prompt: int, cached: int, *lengths: int) -> wire.CallDone:
    usage = wire.Usage(prompt, cached, sum(lengths), queued_ms=500, prefill_ms=250, decode_ms=90)
    outputs = [wire.Output("x" * length, (1,) * length, "length") for length in lengths]
    return wire.CallDone(call, tuple(outputs), usage)


@pytest.mark.parametrize("count", [1, MOST_UNCOUNTED - 1, 2 * MOST_UNCOUNTED + 3])
def test_calls_are_counted_when_somebody_looks(count: int) -> None:
    """However many have ended since, each once, under the name that the model had then."""
    now, model = [0.0], ["m"]
    meters = Meters(lambda: now[0], lambda: model[0])
    value = meters.registry.get_sample_value
    for number in range(count):
        meters.asked(wire.Generate(1, number), "")
        now[0] += 2.0
        meters.replied(done(number, 8, 3, 4, 10))
    model[0] = "other"
    meters.replied(done(count, 1, 0, 1))  # asked by nobody: what its client waited is not known
    labels = {"model_name": "m"}
    assert value("lmprog_num_requests_total", labels) == count
    assert value("lmprog_num_requests_total", {"model_name": "other"}) == 1
    assert value("lmprog_prompt_tokens_total", labels) == 8 * count
    assert value("lmprog_prompt_tokens_cached_total", labels) == 3 * count
    finished = {"finished_reason": "length"}
    assert value("lmprog_request_success_total", labels | finished) == 2 * count
    now_named = {"model_name": "other"}  # histograms are of the model of now
    assert value("lmprog_request_prompt_tokens_count", now_named) == count + 1
    assert value("lmprog_e2e_request_latency_seconds_count", now_named) == count
    assert value("lmprog_e2e_request_latency_seconds_sum", now_named) == 2.0 * count
    assert value("lmprog_time_to_first_token_seconds_sum", now_named) == 0.75 * count
    per_token = value("lmprog_request_time_per_output_token_seconds_sum", now_named)
    assert per_token == pytest.approx(count * 0.09 / 9)
    assert meters.seen()["queued_count"] == count + 1
