"""Models with recurrent layers generate what transformers does, whatever is shared, cut, mixed or
preempted; and what their states do not allow is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence as Items
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter, ModelError
from lmprog.runtime.engine.draft_model import EngineDraftModel, load_draft_engine
from lmprog.runtime.engine.engine import SelectedEngine, load_engine
from lmprog.runtime.engine.kept_pages import open_store
from lmprog.runtime.engine.model.families import is_native
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.engine.native.sampler import NativeSampler
from lmprog.runtime.engine.torch_engine.engine import TorchEngine
from lmprog.runtime.engine.torch_engine.fallback import RECURRENT as KNOWN
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.model_report import model_report
from lmprog.runtime.scheduling.drafting import Guess
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.recurrent import StatePool
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.wire import SamplingParams
from tests.model.checkpoints import NATIVE as FAMILIES
from tests.model.checkpoints import RECURRENT, VOCABULARY, Recipe
from tests.model.conftest import Judge, Judged
from tests.runtime.rig import Rig

GREEDY = SamplingParams(temperature=0.0, logprobs=5)
LENGTHS = (1, 2, 3, 64, 65, 200)
NUM_NEW = 8
NATIVE = [name for name in RECURRENT if is_native(name)]
BY_TORCH = [name for name in RECURRENT if name not in NATIVE or name in ("lfm2", "lfm2_moe")]
EITHER = [*((name, "native") for name in NATIVE), *((name, "torch") for name in BY_TORCH)]
KINDS = [
    *(("lfm2", "native"), ("qwen3_next", "native"), ("granitemoehybrid", "native")),
    *(("nemotron_h", "native"), ("qwen3_5_text", "torch"), ("bamba", "torch")),
]
"""Short convolutions, gated delta nets, Mamba 2."""


@cache
def prompts() -> list[list[int]]:
    """Of some lengths, and such that begin with a part of one another."""
    dice = random.Random(3)
    made = [[dice.randrange(VOCABULARY) for _ in range(length)] for length in LENGTHS]
    base = made[-1]
    made += [[*base[:common], dice.randrange(VOCABULARY)] for common in (16, 37, 37, 64, 150)]
    return [*made, base]


@cache
def engine_of(
    folder: Path, page_size: int, kind: Any, quantize: Any = None
) -> NativeEngine | TorchEngine:
    scheduler = SchedulerConfig(page_size=page_size, num_pages=16_384 // page_size)
    dtype = "float32" if quantize is None else None
    made = load_engine(
        RuntimeConfig(
            str(folder), engine=kind, dtype=dtype, quantize=quantize, threads=1, scheduler=scheduler
        )
    )
    assert made.name == kind
    assert made.states is not None
    return made


def rig_of(
    made: Judged, kind: str = "native", num_slots: int = 32, every: int = 64, **config: Any
) -> Rig:
    fields: dict[str, Any] = {"page_size": 16, "num_pages": 256, **config}
    preempt_every = fields.pop("preempt_every", 0)
    context = fields.pop("context_len", 512)
    pool = StatePool(num_slots, every)
    engine = engine_of(made.folder, fields["page_size"], kind, fields.pop("quantize", None))
    sampler = NativeSampler(engine) if isinstance(engine, NativeEngine) else TorchSampler()
    return Rig(SchedulerConfig(**fields), context, preempt_every, engine, sampler, pool)


def answers(rig: Rig, at_once: int) -> list[Sequence]:
    todo, done = prompts(), list[Sequence]()
    for start in range(0, len(todo), at_once):
        done += [rig.gen(prompt, NUM_NEW, GREEDY) for prompt in todo[start : start + at_once]]
        rig.run()
    return done


def assert_as_transformers(made: Judged, sequences: list[Sequence]) -> None:
    """The tokens, and the likeliest five at each of them."""
    for sequence in sequences:
        tokens, start = list(sequence.tokens), sequence.group.prompt_len
        wanted = _logprobs(made, tuple(tokens))[start - 1 : -1]
        assert wanted.argmax(-1).tolist() == tokens[start:], f"prompt of {start} tokens"
        assert isinstance(sequence.task, Generation)
        for scored, row in zip(sequence.task.logprobs, wanted, strict=True):
            for token, logprob in scored.top:
                assert abs(logprob - float(row[token])) < 1e-4


_JUDGED: dict[tuple[Path, tuple[int, ...]], torch.Tensor] = {}


def _logprobs(made: Judged, tokens: tuple[int, ...]) -> torch.Tensor:
    """Transformers', computed in one pass without any cache. # [tokens, vocab]"""
    key = (made.folder, tokens)
    if key not in _JUDGED:
        with torch.no_grad():
            _JUDGED[key] = made.model(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
    return _JUDGED[key]


WITH_PICTURES = {"qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe"}


def test_each_family_that_is_computed_has_a_recipe_here() -> None:
    assert {*RECURRENT, *WITH_PICTURES} == KNOWN | {"minimax"}


@pytest.mark.parametrize("name", list(WITH_PICTURES))
def test_of_a_checkpoint_with_a_part_for_pictures_the_text_part_is_computed(
    name: str, tmp_path: Path
) -> None:
    recipe = RECURRENT[f"{name}_text"]
    seen = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
    seen |= {"out_hidden_size": 64, "num_position_embeddings": 16}
    kind = getattr(transformers, f"{WITH_PICTURES[name]}Config")
    whole = kind(text_config=recipe.config().to_dict(), vision_config=seen)
    torch.manual_seed(1)
    model = getattr(transformers, f"{WITH_PICTURES[name]}ForConditionalGeneration")(whole).eval()
    model.save_pretrained(tmp_path)
    made = Judged(tmp_path, model, [], [])
    kind = "native" if is_native(name) else "torch"
    assert_as_transformers(made, answers(rig_of(made, kind, max_chunk=50), at_once=12))


@pytest.mark.parametrize("chunk", [0, 7])
@pytest.mark.parametrize(("name", "kind"), EITHER)
def test_each_family_generates_what_transformers_does(
    name: str, kind: str, chunk: int, judged: Judge
) -> None:
    made = judged(f"{name}-states", RECURRENT[name], judge=False)
    assert_as_transformers(made, answers(rig_of(made, kind, max_chunk=chunk), at_once=12))


VARIANTS = {
    "lfm2": {"block_auto_adjust_ff_dim": True, "block_multiple_of": 32, "conv_L_cache": 4},
    "granitemoehybrid": {"num_local_experts": 0, "position_embedding_type": "rope"}
    | {"mamba_conv_bias": False, "attention_multiplier": 0.2, "embedding_multiplier": 3.0},
    "qwen3_next": {"decoder_sparse_step": 2, "rope_parameters": None},
    "nemotron_h": {"layers_block_type": ["mlp", "mamba", "mamba", "attention", "mlp", "attention"]}
    | {"time_step_min": 0.8, "use_conv_bias": False},
    "lfm2_moe": {"use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.5},
    "olmo_hybrid": {"linear_allow_neg_eigval": False, "rope_parameters": {"rope_theta": 5e5}},
    "qwen3_5_text": {"linear_key_head_dim": 26, "linear_value_head_dim": 112}
    | {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 3},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_a_config_says_otherwise_is_computed_natively_too(name: str, judged: Judge) -> None:
    recipe = RECURRENT[name]
    made = judged(f"{name}-other", Recipe(recipe.family, recipe.fields | VARIANTS[name]))
    rig = rig_of(made)
    sequence = rig.gen(prompts()[-1], NUM_NEW, GREEDY)
    rig.run()
    assert_as_transformers(made, [sequence])


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "granitemoehybrid", "nemotron_h"])
def test_the_cache_changes_no_bit_of_what_a_native_state_says(name: str, judged: Judge) -> None:
    made = judged(f"{name}-states", RECURRENT[name], judge=False)
    alone = logprobs(answers(rig_of(made), at_once=1))
    for case in ({"max_chunk": 5, "every": 7}, {"share": False}):
        assert logprobs(answers(rig_of(made, **case), at_once=12)) == alone


def logprobs(sequences: list[Sequence]) -> list[list[Any]]:
    tasks = [sequence.task for sequence in sequences]
    return [list(task.logprobs) for task in tasks if isinstance(task, Generation)]


CASES: dict[str, dict[str, Any]] = {
    "one after the other": {"at_once": 1},
    "cache off": {"share": False},
    "pages of 1": {"page_size": 1, "num_pages": 4096},
    "a budget of 10 tokens": {"token_budget": 10},
    "preempted every third step": {"max_chunk": 16, "preempt_every": 3},
    "hardly any memory": {"num_pages": 20},
    "hardly any slots": {"num_slots": 2, "at_once": 3},
    "a snapshot at every fifth token": {"every": 5},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_cache_never_changes_the_answer(name: str, kind: str, case: str, judged: Judge) -> None:
    made = judged(f"{name}-states", RECURRENT[name], judge=False)
    config = {"at_once": len(prompts()), **CASES[case]}
    at_once = config.pop("at_once")
    rig = rig_of(made, kind, **config)
    assert_as_transformers(made, answers(rig, at_once))
    assert (rig.scheduler.stats.preemptions > 2) == ("preempt_every" in config)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_long_prompts_in_chunks_and_in_company_generate_what_transformers_does(
    name: str, kind: str, judged: Judge
) -> None:
    made = judged(f"{name}-states", RECURRENT[name], judge=False)
    dice = random.Random(8)
    base = [dice.randrange(VOCABULARY) for _ in range(3000)]
    rig = rig_of(made, kind, max_chunk=190, context_len=4096)
    lengths = (40, 1100, 1101, 3000)  # each begins with the one before
    several = [rig.gen([*base[:length], 7], 3, GREEDY) for length in lengths]
    rig.run()
    assert_as_transformers(made, several)
    assert rig.scheduler.stats.computed_tokens < 3100, "what is common is computed once"


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "granitemoehybrid", "minimax"])
def test_fifteen_thousand_tokens_are_followed_by_what_transformers_says(
    name: str, tmp_path: Path
) -> None:
    """One of each kind of states."""
    recipe, dice = RECURRENT[name], random.Random(1)
    model = Recipe(recipe.family, recipe.fields | {"max_position_embeddings": 16_384}).make(
        tmp_path
    )
    prompt = [dice.randrange(VOCABULARY) for _ in range(15_000)]
    fields: dict[str, Any] = {"num_pages": 1024, "max_chunk": 700, "context_len": 16_000}
    rig = rig_of(Judged(tmp_path, model, [], []), every=2000, **fields)
    found = rig.gen(prompt, 4, GREEDY)
    rig.run()
    with torch.no_grad():
        said = model(torch.tensor([list(found.tokens)]), logits_to_keep=5).logits[0].float()
    wanted = said.log_softmax(-1)[:-1]
    assert wanted.argmax(-1).tolist() == list(found.tokens)[15_000:]
    assert isinstance(found.task, Generation)
    for scored, row in zip(found.task.logprobs, wanted, strict=True):
        assert all(abs(logprob - float(row[token])) < 1e-4 for token, logprob in scored.top)


DRAFTED = [
    *((name, kind, None) for name, kind in KINDS),
    *((name, "native", None) for name in ("lfm2_moe", "olmo_hybrid", "minimax")),
    *((name, "native", "int8") for name in ("lfm2", "qwen3_5_text", "nemotron_h")),
]


@pytest.mark.parametrize(("name", "kind", "quantize"), DRAFTED)
def test_drafts_never_change_the_answer(
    name: str, kind: str, quantize: str | None, judged: Judge
) -> None:
    """Guesses that are right, wrong, or wrong in the middle; no bit of a native answer."""
    made = judged(f"{name}-states", RECURRENT[name], judge=False)
    plain = rig_of(made, kind, quantize=quantize, speculation="off")
    alone = answers(plain, at_once=12)
    texts = [list(one.tokens) for one in alone]
    dice = random.Random(5)

    def guess(tokens: Items[int], most: int, evidence: int) -> Guess:
        known = list(tokens)
        text = next(one for one in texts if one[: len(known)] == known)
        found = text[len(known) :][: dice.randrange(5)][:most]
        if found and dice.random() < 0.5:
            found[dice.randrange(len(found))] ^= 1
        return Guess(found)

    rig = rig_of(made, kind, quantize=quantize, speculation="always")
    assert rig.scheduler.drafting is not None
    rig.scheduler.drafting.source = guess
    drafted = answers(rig, at_once=12)
    if kind == "native":
        assert [list(one.tokens) for one in drafted] == texts
        assert logprobs(drafted) == logprobs(alone)
    else:
        assert_as_transformers(made, drafted)
    stats = rig.scheduler.stats
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert set(ways(rig)) == {"from its own", "from another", "after known", "after all"}


def ways(rig: Rig) -> Counter[str]:
    """How many rows with drafts began where, and how many rows after such went on from which of
    their two states: that behind the known tokens, or that behind all.
    """
    found: Counter[str] = Counter()
    wrote: dict[Sequence, tuple[int, int]] = {}
    for plan in rig.plans:
        assert plan.states is not None
        slots = {row: slot for row, _, slot in plan.states.snapshots if row in plan.drafts}
        for index, (row, (source, target)) in enumerate(
            zip(plan.rows, plan.states.rows, strict=True)
        ):
            if row.sequence in wrote:
                behind_known, behind_all = wrote.pop(row.sequence)
                assert source in (behind_known, behind_all)
                found["after known" if source == behind_known else "after all"] += 1
            if index in plan.drafts:
                assert slots[index] != target
                wrote[row.sequence] = slots[index], target
                found["from its own" if source == slots[index] else "from another"] += 1
    return found


def test_a_draft_model_changes_no_bit_of_what_a_native_state_says(judged: Judge) -> None:
    small = judged("llama-drafts", FAMILIES["llama"], judge=False)
    drafter = small.engine(engine="native", scheduler=SchedulerConfig(page_size=16))
    for name in ("lfm2", "qwen3_5_text", "granitemoehybrid"):
        made = judged(f"{name}-states", RECURRENT[name], judge=False)
        alone = answers(rig_of(made, speculation="off"), at_once=12)
        rig = rig_of(made, speculation="always")
        assert rig.scheduler.drafting is not None
        sampler = PlainSampler()
        rig.scheduler.drafting.model = EngineDraftModel(drafter, sampler, 16, VOCABULARY)
        drafted = answers(rig, at_once=12)
        assert logprobs(drafted) == logprobs(alone)
        assert rig.scheduler.drafting.model is not None, "it did not fail"
        assert rig.scheduler.stats.drafted_tokens > 0
        assert ways(rig)["after known"] > 0


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_forks_answer_as_if_each_were_alone_and_compute_only_their_own(
    name: str, kind: str, judged: Judge
) -> None:
    made = judged(f"{name}-states", RECURRENT[name], judge=False)
    rig = rig_of(made, kind)
    first = rig.gen(prompts()[-1], NUM_NEW, GREEDY)
    rig.run()
    before = rig.scheduler.stats.computed_tokens
    forks = [rig.gen([*first.tokens, 5, token], NUM_NEW, GREEDY) for token in range(7)]
    rig.run()
    assert_as_transformers(made, forks)
    each = 2 + NUM_NEW
    assert rig.scheduler.stats.computed_tokens - before <= 7 * each


def test_a_kind_of_layer_that_is_not_computed_is_refused_by_name(tmp_path: Path) -> None:
    sizes = {"mamba_d_state": 8, "mamba_headdim": 16, "n_mamba_heads": 8, "num_mem_blocks": 1}
    kinds = ["linear_attention", "hybrid", "linear_attention"]
    Recipe("Zamba2", sizes | {"layer_types": kinds}).make(tmp_path)
    with pytest.raises(ModelError, match=r"zamba2 keeps a state .* not .*computed yet"):
        load_engine(RuntimeConfig(model=str(tmp_path)))


def test_states_that_torch_computes_have_no_second_tier(judged: Judge) -> None:
    made = judged("lfm2-states", RECURRENT["lfm2"], judge=False)
    config = RuntimeConfig(str(made.folder), engine="torch", dtype="float32", kv_disk_mb=10)
    with pytest.raises(InvalidParameter, match="needs the native engine"):
        open_store(config, load_engine(config), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"quantize": "int8"}, "needs the native engine"),
        ({"engine": "native"}, "needs the native engine"),
        ({"lora": ("a=b",)}, "computes no adapters"),
    ],
)
def test_a_family_that_is_not_native_has_what_torch_has(
    options: dict[str, Any], reason: str, judged: Judge
) -> None:
    made = judged("falcon_h1-states", RECURRENT["falcon_h1"], judge=False)
    with pytest.raises(InvalidParameter, match=reason):
        load_engine(RuntimeConfig(model=str(made.folder), **options))


@pytest.mark.parametrize(
    ("name", "quantize", "state", "says"),
    [
        ("falcon_h1", None, "warn", "transformers, with recurrent layers (without adapters"),
        ("falcon_h1", "int8", "fail", "int8 was asked for: "),
        ("lfm2", "int8", "ok", "native; "),
    ],
)
def test_the_report_on_a_model_says_who_computes_its_recurrent_layers(
    name: str, quantize: Any, state: str, says: str, judged: Judge
) -> None:
    made = judged(f"{name}-states", RECURRENT[name], judge=False)
    config = RuntimeConfig(model=str(made.folder), quantize=quantize)
    found = {one.name: one for one in model_report(config)}
    assert found["engine"].state == state
    assert says in found["engine"].what
    if name == "lfm2":
        assert "recurrent states; " in found["memory"].what


def test_a_model_with_states_drafts_for_nobody(judged: Judge) -> None:
    made = judged("lfm2-states", RECURRENT["lfm2"], judge=False)
    config = RuntimeConfig(model="nano", draft_model=str(made.folder))
    with pytest.raises(InvalidParameter, match="recurrent layers"):
        load_draft_engine(config, SelectedEngine(None, TorchSampler(), "cpu"))
