"""Puts a runtime together: engine, tokenizer, template, scheduler, interpreter, loop.

The only module that knows all parts.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmprog import wire
from lmprog.config import RuntimeConfig
from lmprog.config_check import check_options
from lmprog.errors import InvalidParameter, LmprogError, ModelError
from lmprog.runtime.documents.checkpoint_documents import json_document
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.programs.compile_pool import CompilePool
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.programs.public_prefixes import public_prefix
from lmprog.runtime.scheduling.namespaces import AdapterNames, Namespaces, origin_of
from lmprog.runtime.scheduling.scheduler import IdleMemory, Scheduler
from lmprog.runtime.steps import StepEngine
from lmprog.runtime.text.chat_template import ChatTemplate, load_template
from lmprog.runtime.text.special_tokens import infill_texts
from lmprog.runtime.text.tokenizer import PieceTokenizer, first_difference, load_tokenizer
from lmprog.runtime.text.tool_call_derivation import tool_support
from lmprog.tool_calls.harmony import shown_marks
from lmprog.transport import RuntimeChannel

if TYPE_CHECKING:
    from lmprog.runtime.engine.engine import SelectedEngine
    from lmprog.runtime.engine.sharded.rank_group import RankGroup
    from lmprog.runtime.kv_events.kv_publisher import BlockRecord
    from lmprog.runtime.ranks.leading import Led
    from lmprog.runtime.scheduling.drafting import DraftModel
    from lmprog.runtime.scheduling.recurrent import StatePool


def assemble(
    config: RuntimeConfig,
    channel: RuntimeChannel,
    stage: Callable[[str], None] = lambda _: None,
    resolved: Callable[[str, str], None] = lambda _name, _value: None,
    ranks: RankGroup | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Loop, wire.Welcome]:
    """A loop that serves `channel` with the model of `config`. Raises ModelError and its like, all
    worded for users.

    `stage` is told what it is busy with, `resolved` what was decided where `config` left it open.
    `clock` is what steps, pauses and deadlines are measured by.
    `ranks` are those that compute the model together with this process, which leads them.
    """
    stage("imports its libraries")
    from lmprog.runtime.engine.draft_model import without_draft_memory
    from lmprog.runtime.engine.engine import select_engine
    from lmprog.runtime.engine.kept_pages import open_store, page_release
    from lmprog.runtime.engine.model.checkpoint_digests import ModelIdentity

    stage("loads the model")
    identity = ModelIdentity(config.model)
    selected = select_engine(without_draft_memory(config), ranks, knows_frames=True)
    engine = selected.engine
    for name, value in selected.facts.items():
        resolved(name, value)
    tokenizer = load_tokenizer(engine.location)
    scheduling = replace(config.scheduler, num_pages=engine.num_pages)
    fingerprint = identity.fingerprint(engine, tokenizer.eos_ids)
    store = open_store(config, engine, fingerprint)
    kept = store, _states(engine), getattr(engine, "windows", None)
    scheduler = Scheduler(scheduling, engine.context_len, None, clock, *kept)
    draft_model = _draft_model(config, selected, tokenizer, scheduler.tables.copies.origins)
    if scheduler.drafting is not None:
        scheduler.drafting.model = draft_model
    # loaded when it is first asked for: a model without a template serves plain text all the same
    chat_template = functools.cache(lambda: load_template(engine.location))
    tools, variables = template_facts(chat_template, tokenizer)
    prefixes = [public_prefix(Path(at), tokenizer, chat_template) for at in config.public_prefix]
    namespaces = Namespaces(max(engine.vocab_size, tokenizer.vocab_size), prefixes)
    adapters, tags = AdapterNames(selected.adapters), frozenset(tokenizer.shown)
    record = functools.partial(_block_record, scheduler, namespaces, fingerprint, adapters)
    channel = _publishing(config, channel, record)
    constraints = CallConstraints(tokenizer, engine.vocab_size, CompilePool())
    welcome = wire.Welcome(
        version=wire.PROTOCOL_VERSION,
        model=config.model,
        context_len=scheduler.longest_sequence,
        vocab_size=engine.vocab_size,
        page_size=scheduling.page_size,
        num_pages=scheduling.num_pages,
        pid=os.getpid(),
        suggested=suggested_sampling(engine.location),
        tools=tools,
        infill=infill_texts(tokenizer),
        adapters=selected.adapters,
        fingerprint=fingerprint,
        template_variables=variables,
        generation=config.generation,
        served_name=config.served_model_name,
    )
    model = ServedModel(tokenizer, chat_template, welcome, namespaces, adapters, tags)
    rng, tokenising = random.Random(os.urandom(16)), ThreadPoolExecutor(1, "tokeniser")
    interpreter = Interpreter(
        scheduler, model, constraints, clock, rng, tokenising, channel.counters
    )
    stepping: StepEngine[Any] = engine
    give_back = _give_back(scheduler, page_release(engine))
    if give_back is not None and config.kv_idle_seconds:
        idle_memory = IdleMemory(scheduler, give_back, config.kv_idle_seconds)
        scheduler.hooks.idle.append(idle_memory.turn)
    return Loop(channel, interpreter, scheduler, stepping, selected.sampler, clock), welcome


def _give_back(
    scheduler: Scheduler, release: Callable[[Sequence[int]], None] | None
) -> Callable[[Sequence[int]], None] | None:
    """What idle memory goes back through: frames of windows are behind the pages."""
    windows = scheduler.tables.windows
    if windows is None or release is None:
        return release
    windows.pages.give_back = release
    return windows.pages.return_memory


def _states(engine: Any) -> StatePool | None:
    """Where the engine keeps states of recurrent layers; None: its model has none."""
    slots = getattr(engine, "states", None)
    if slots is None:
        return None
    from lmprog.runtime.scheduling.recurrent import StatePool

    return StatePool(slots.num_slots, slots.every, getattr(engine, "parts_of_state", 1))


def _draft_model(
    config: RuntimeConfig,
    selected: SelectedEngine,
    tokenizer: PieceTokenizer,
    copied: Container[int],
) -> DraftModel | None:
    """What drafts for the engine that was selected, where that is asked for. Raises
    InvalidParameter where tokens of the draft model mean something else.
    """
    from lmprog.runtime.engine.draft_model import EngineDraftModel, load_draft_engine, own_drafts

    drafting = load_draft_engine(config, selected)
    if drafting is None:
        return own_drafts(config, selected, copied)
    difference = first_difference(tokenizer, load_tokenizer(drafting.engine.location))
    if difference is not None:
        raise InvalidParameter(
            f"draft_model = {config.draft_model!r} has another vocabulary than {config.model!r} "
            f"({difference}, the model's first); a draft model needs the same tokenizer",
            name="draft_model",
            value=config.draft_model,
        )
    page_size, vocab_size = config.scheduler.page_size, selected.engine.vocab_size
    return EngineDraftModel(drafting.engine, drafting.sampler, page_size, vocab_size)


def _publishing(
    config: RuntimeConfig, channel: RuntimeChannel, record: Callable[[], BlockRecord]
) -> RuntimeChannel:
    """The channel, which also tells routers of the cache where that is asked for."""
    if config.kv_events is None:
        return channel
    from lmprog.runtime.kv_events.kv_publisher import publishing

    return publishing(config, channel, record)


def _block_record(
    scheduler: Scheduler,
    namespaces: Namespaces,
    fingerprint: wire.Fingerprint,
    adapters: AdapterNames,
) -> BlockRecord:
    from lmprog.runtime.kv_events.kv_publisher import BlockRecord, UsableBlocks

    tree, tables, token = scheduler.tree, scheduler.tables, namespaces.token
    made_by = " ".join(map(str, fingerprint.parts.values()))
    origin = functools.partial(origin_of, adapters=adapters)
    if tables.states is not None:
        return UsableBlocks(tree, tables.states.snapshots, token, made_by, origin)
    if tables.windows is not None:
        return UsableBlocks(tree, tables.windows.ends(), token, made_by, origin)
    return BlockRecord(tree, token, made_by, origin)


def joined_ranks(config: RuntimeConfig, stage: Callable[[str], None]) -> Led | None:
    """The ranks that `config` asks for, joined and watched; None where this process computes alone.
    Raises InvalidParameter for what they cannot do.
    """
    if config.tp == 1:
        check_options(config)
        return None
    from lmprog.runtime.engine.machine.resources import require_torch
    from lmprog.runtime.engine.model.locate import locate
    from lmprog.runtime.engine.sharded.shard import check_ranks, shardable_shape

    check_ranks(config)
    require_torch("a model that several processes compute together (tp)")
    shardable_shape(config, locate(config.model))  # raises before anything is started
    from lmprog.runtime.ranks.leading import lead

    stage("waits for its ranks")
    return lead(config)


def template_facts(
    chat_template: Callable[[], ChatTemplate], tokenizer: PieceTokenizer
) -> tuple[wire.ToolSupport, tuple[str, ...]]:
    """How the model calls tools, and the further names that its template uses; the special tokens
    of its calls become part of texts. Without a template that can be read nothing is known: whoever
    opens a role is told.
    """
    try:
        template = chat_template()
    except LmprogError:
        return wire.ToolSupport(), ()
    ends = [tokenizer.token_text(token) for token in tokenizer.eos_ids]
    found = tool_support(template, ends)
    marks = shown_marks(found.form)
    tokenizer.show(marks + found.thought.begin + found.thought.end)
    tags = [tag for tag in tokenizer.shown.values() if tag in marks]
    return found.with_tags(tags), template.variables


def suggested_sampling(folder: Path | None) -> wire.SuggestedSampling:
    """The defaults of a checkpoint, from its `generation_config.json`: clients get them with the
    `Welcome`, and decide whether to use them. `do_sample` is ignored, as in vLLM and SGLang.

    Empty for a model without that file. Raises ModelError where it cannot be read."""
    if folder is None:
        return wire.SuggestedSampling()
    found = json_document(folder, "generation_config.json")
    if found is None:
        return wire.SuggestedSampling()
    try:
        return wire.suggested(found)
    except ValueError as error:
        raise ModelError(
            f"{folder.name}/generation_config.json cannot be read: {error}. Correct the file."
        ) from error
