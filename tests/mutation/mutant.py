"""A planted bug: one small replacement in one source file, and the tests that should notice it."""

from __future__ import annotations

from dataclasses import dataclass

ROOMS = {
    "radix": "tests/radix/test_radix_pages.py tests/radix/test_radix_tree.py "
    "tests/radix/test_radix_tails.py tests/radix/test_tree_view.py "
    "tests/radix/test_radix_references.py tests/radix/test_radix_sequences.py",
    "scheduling": "tests/runtime/test_client_shares.py tests/runtime/test_admission_order.py "
    "tests/runtime/test_short_memory.py tests/runtime/test_step_bounds.py "
    "tests/runtime/test_namespaces.py tests/runtime/test_scheduler.py "
    "tests/runtime/test_draft_chances.py tests/runtime/test_draft_worth.py "
    "tests/runtime/test_speculation.py tests/runtime/test_draft_model.py",
    "sessions": "tests/runtime/test_sessions.py",
    "ledger": "tests/runtime/test_short_calls.py tests/runtime/test_client_shares.py tests/runtime/test_backfill.py "
    "tests/runtime/test_pieces_of_selects.py tests/runtime/test_shares_hold.py "
    "tests/runtime/test_long_texts.py",
    "jobs": "tests/runtime/test_ends_of_jobs.py",
    "early texts": "tests/runtime/test_early_texts.py",
    "next turns": "tests/runtime/test_next_turns.py",
    "held bytes": "tests/server/test_memory.py tests/server/test_responses.py",
    "programs": "tests/runtime/test_ends_of_calls.py tests/runtime/test_forced_tokens.py "
    "tests/runtime/test_interpreter.py tests/runtime/test_keeping.py "
    "tests/runtime/test_streamed_logprobs.py tests/runtime/test_usage.py",
    "branch": "tests/runtime/test_branch.py tests/runtime/test_interpreter.py",
    "inbox": "tests/runtime/test_inbox.py tests/runtime/test_loop.py",
    "ways": "tests/backends/test_branches_are_like_the_runtimes.py",
    "select": "tests/runtime/test_interpreter.py tests/runtime/test_select_is_exact.py",
    "generation": "tests/runtime/test_forced_tokens.py tests/runtime/test_interpreter.py tests/runtime/test_scheduler.py "
    "tests/runtime/test_spelling.py",
    "healing": "tests/runtime/test_healing.py",
    "sampler": "tests/sampler",
    "text": "tests/text/test_text.py tests/text/test_stop_patterns.py",
    "transport": "tests/wire/test_channels.py tests/wire/test_zeromq.py tests/wire/test_messages.py "
    "tests/wire/test_access.py",
    "tier": "tests/tier/test_second_tier.py tests/tier/test_storing.py tests/tier/test_page_file.py "
    "tests/tier/test_part_pages.py",
    "fleet": "tests/fleet/test_program_log.py tests/fleet/test_placement.py tests/fleet/test_moving.py "
    "tests/fleet/test_replica_death.py",
    "fingerprint": "tests/fleet/test_one_model.py",
    "replaced models": "tests/lang/test_checkpoints.py tests/server/test_replaced_model.py",
    "pages on disk": "tests/tier/test_pages_on_disk.py",
    "packed weights": "tests/model/test_weight_cache.py",
    "tool_calls": "tests/tool_calls/test_call_stream.py tests/tool_calls/test_derivation.py "
    "tests/tool_calls/test_quoted_calls.py",
    "states": "tests/radix/test_snapshots.py tests/runtime/test_recurrent_states.py "
    "tests/tier/test_stored_states.py tests/model/test_recurrent_models.py",
    "stored states": "tests/tier/test_stored_states.py tests/kv_events/test_block_record.py "
    "tests/runtime/test_recurrent_programs.py",
    "tags": "tests/constrained/test_structural_tags.py",
    "constraints": "tests/constrained/test_late_masks.py tests/constraints/test_forced.py "
    "tests/constrained/test_compile_turns.py",
}
"""The tests of each room, quick ones first. Where they notice nothing the simulation is tried."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """In `path`, below `lmprog/`, `old`, which is there once, becomes `new`."""

    name: str
    room: str
    path: str
    old: str
    new: str

    def planted_in(self, source: str) -> str:
        """Raises ValueError where the source has changed."""
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: {self.old!r} is {source.count(self.old)} times in {self.path}"
            )
        return source.replace(self.old, self.new)
