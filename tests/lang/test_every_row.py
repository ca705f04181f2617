"""Where each promise of the language is tested: the table is the promise, and a test that it names
must exist.

The rows are those of the language's own description: the plain spelling, the operator spelling,
what goes beyond, and the 22 defects of SGLang's frontend (0.5.23). A row names tests as
`file::test`; the beginning of a name is enough.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

PLAIN = {
    "a program keeps its signature; its branch has any name": "lang/test_rows_plain.py::test_a_program_keeps_its_sig",
    "roles; nothing hidden is added": "lang/test_program.py::test_roles_are "
    "lang/test_rows_plain.py::test_nothing_hidden",
    "select is scored and a str with scores": "lang/test_program.py::test_a_select_is_a_string",
    "gen(Literal) is confined and typed": "lang/test_typed.py::test_strings_to_choose_from",
    "gen of every type": "lang/test_typed.py::test_a_generation_comes_back "
    "lang/test_typed.py::test_a_pydantic_model "
    "constraints/test_types.py::test_a_type_takes_its_values",
    "gen by regex, schema, choices, grammar": "lang/test_program.py::test_constraints_by_keyword "
    "lang/test_rows_plain.py::test_a_schema_and_a_grammar",
    "a typed value may be reasoned about": "lang/test_typed_reasoning.py::test_thoughts_are_free",
    "mypy infers the type": "lang/test_typing.py::test_mypy_infers "
    "lang/test_typing.py::test_mypy_reveals",
    "fork has the semantics of a TaskGroup": "lang/test_fork.py::test_one_failure_cancels "
    "lang/test_fork.py::test_leaving_a_fork_waits lang/test_fork.py::test_several_failures",
    "fork(on_error='keep') collects": "lang/test_fork.py::test_a_refused_call_leaves",
    "branches.map gives a list": "lang/test_fork.py::test_map_runs",
    "a value that does not validate is asked for again": "lang/test_asking_again.py::test_a_wrong_value "
    "lang/test_asking_again.py::test_in_a_chat lang/test_asking_again.py::test_a_stream_says "
    "lang/test_asking_again.py::test_a_saved_run",
    "beam": "lang/test_beams.py::test_the_likeliest runtime/test_beams.py::test_tokens_and_scores",
    "vote": "lang/test_program.py::test_vote",
    "run blocks, arun awaits": "lang/test_running.py::test_arun_of_a_plain "
    "lang/test_running.py::test_a_program_can_be_run",
    "stream gives typed events": "lang/test_stream.py::test_a_stream_gives "
    "lang/test_partial.py::test_a_stream_of_a_typed",
    "map, errors collected, a bar": "lang/test_rows_plain.py::test_map_keeps",
    "preview is the exact prompt": "lang/test_rehearsal.py::test_what_is_previewed "
    "lang/test_rehearsal.py::test_previewed_tokens",
    "explain is the worst case": "lang/test_rehearsal.py::test_explained_tokens",
    "a Gen is awaitable and .value blocks": "lang/test_program.py::test_a_plain_program_reads "
    "lang/test_program.py::test_an_async_program_awaits",
    "a Gen in text stays a reference": "lang/test_references.py::test_a_pending_generation_in_an_f_string",
    "sampling by call, view, fork, run": "lang/test_precedence.py::test_the_stronger_level_counts",
    "settings are not mixed with arguments": "lang/test_sampling.py::test_the_program_keeps_a_parameter",
    "meta of a value, usage of a run": "lang/test_rows_plain.py::test_a_value_has_its_meta",
    "transcript": "lang/test_rows_plain.py::test_a_transcript",
    "a notebook shows the cached text shaded": "lang/test_show.py::test_notebooks "
    "lang/test_rows_plain.py::test_a_notebook",
    "budgets of runs, forks, copies, views": "lang/test_budget.py::test_a_run_stops "
    "lang/test_budget.py::test_a_fork_has lang/test_limits_of_branches.py::test_a_copy_has",
    "cancelling frees pages": "lang/test_with_runtime.py::test_cancelling_a_task",
    "errors are one tree": "lang/test_rows_plain.py::test_errors_are_one_tree",
    "an error has the program's line": "lang/test_defects.py::test_01_the_traceback",
    "a seed replays": "lang/test_with_runtime.py::test_a_seed_replays "
    "lang/test_replay.py::test_the_seed_of_a_run",
    "save and replay": "lang/test_replay.py::test_a_saved_run_is_done_again",
    "embedded, remote, HTTP, API, scripted": "lang/test_embedded.py::test_a_program_runs_on_the_shipped_model "
    "lang/test_embedded.py::test_a_second_client backends/test_endpoint.py::test_on_lmprogs_server "
    "backends/test_openai.py::test_a_program_of_text",
}
OPERATOR = {
    "every module level name": "lang/test_rows_operator.py::test_a_module_level_name",
    "image and video are refused": "lang/test_rows_operator.py::test_images_and_videos",
    "roles": "lang/test_rows_operator.py::test_a_role_expression",
    "every keyword of gen": "lang/test_rows_operator.py::test_a_keyword_of_gen",
    "every keyword of run": "lang/test_rows_operator_states.py::test_a_keyword_of_run",
    "run_batch": "lang/test_rows_operator_states.py::test_run_batch",
    "bind, trace": "lang/test_rows_operator_states.py::test_bind",
    "cache": "lang/test_rows_operator_states.py::test_cache",
    "f(s, ...)": "lang/test_rows_operator_states.py::test_a_program_called_with_a_state",
    "every method of a state": "lang/test_rows_operator_states.py::test_a_state_takes "
    "lang/test_rows_operator_states.py::test_variables "
    "lang/test_rows_operator_states.py::test_var_scope "
    "lang/test_rows_operator_states.py::test_text_iter",
    "groups and joins": "lang/test_rows_operator_states.py::test_a_group "
    "lang/test_rows_operator_states.py::test_a_join",
    "separate_reasoning": "lang/test_reasoning.py::test_a_chat_keeps "
    "lang/test_typed_reasoning.py::test_where_the",
    "choice methods in one call over one prefix": "runtime/test_interpreter.py::test_a_select_scores_all_options "
    "runtime/test_select_is_exact.py::test_every_method "
    "lang/test_rows_operator.py::test_a_select_may_draw",
    "Engine, global_config": "lang/test_engine.py::test_",
    "an SGLang program runs with its import changed": "lang/test_ported_programs.py::test_ "
    "lang/test_ported_examples.py::test_",
}
BEYOND = {
    "token-level state": "lang/test_fork.py::test_branches_share "
    "runtime/test_cache_never_changes_the_answer.py::test_the_answer",
    "healing": "runtime/test_healing.py::test_",
    "programs on the wire": "lang/test_references.py::test_a_pending "
    "lang/test_program.py::test_the_ops_of_one_turn",
    "select in one pass": "runtime/test_interpreter.py::test_a_select_scores_all_options",
    "budget-aware constraints": "constrained/test_always_closes.py::test_every_finished_text",
    "structured concurrency": "lang/test_fork.py::test_one_failure "
    "lang/test_budget.py::test_a_fork_has",
    "best-of, vote, race in the runtime": "runtime/test_keeping.py::test_the_best "
    "runtime/test_keeping.py::test_the_majority runtime/test_keeping.py::test_the_fastest "
    "lang/test_contests.py::test_a_race lang/test_contests.py::test_a_vote",
    "a race of branches": "lang/test_racing.py::test_pending_results "
    "lang/test_racing.py::test_coroutines_race",
    "a thousand programs at once": "lang/test_thousand.py::test_every_program",
    "speculation on APIs": "backends/test_speculation.py::test_three_fields",
    "preview, explain, replay": "lang/test_rehearsal.py::test_what_is_previewed "
    "lang/test_replay.py::test_a_saved_run",
}
DEFECTS = {
    1: "lang/test_defects.py::test_01_",
    2: "lang/test_defects.py::test_02_",
    3: "lang/test_defects.py::test_03_04_",
    4: "lang/test_defects.py::test_03_04_",
    5: "lang/test_defects.py::test_05_",
    6: "lang/test_defects.py::test_06_",
    7: "lang/test_defects.py::test_07_",
    8: "lang/test_defects.py::test_08_ backends/test_speculation.py::test_08_22_",
    9: "lang/test_defects.py::test_09_",
    10: "lang/test_defects.py::test_10_",
    11: "lang/test_rehearsal.py::test_11_",
    12: "lang/test_defects.py::test_12_",
    13: "lang/test_defects.py::test_13_",
    14: "lang/test_defects.py::test_14_",
    15: "lang/test_defects.py::test_15_",
    16: "lang/test_defects.py::test_16_",
    17: "lang/test_defects.py::test_17_",
    18: "lang/test_defects.py::test_18_ "
    "runtime/test_interpreter.py::test_a_select_that_is_repeated "
    "runtime/test_select_is_exact.py::test_every_method",
    19: "lang/test_defects.py::test_19_",
    20: "text/test_chat.py::test_a_checkpoint_without_a_template "
    "text/test_chat.py::test_the_plain_template "
    "text/test_chat.py::test_the_texts_around",
    21: "lang/test_defects.py::test_21_a_hundred_coroutines "
    "lang/test_defects.py::test_21_a_hundred_plain "
    "lang/test_running.py::test_a_run_out_of_time "
    "backends/test_openai_failures.py::test_a_passing_failure",
    22: "lang/test_defects.py::test_22_a_generated_string "
    "lang/test_defects.py::test_22_a_generated_float "
    "backends/test_anthropic.py::test_22_ backends/test_speculation.py::test_22_",
}
ROWS = [
    *PLAIN.items(),
    *OPERATOR.items(),
    *BEYOND.items(),
    *((f"defect {n}", named) for n, named in DEFECTS.items()),
]


@cache
def _tests_of(file: str) -> tuple[str, ...]:
    """The names of the tests in a file that are not skipped outright."""
    return tuple(
        re.findall(r"^(?:async )?def (test_\w+)", (TESTS / file).read_text(), re.MULTILINE)
    )


@pytest.mark.parametrize(("row", "named"), ROWS, ids=[row for row, _ in ROWS])
def test_every_row_has_its_tests(row: str, named: str) -> None:
    for name in named.split():
        file, _, beginning = name.partition("::")
        assert any(test.startswith(beginning) for test in _tests_of(file)), (
            f"{row}: there is no test {name}"
        )


def test_every_defect_is_in_the_table() -> None:
    assert list(DEFECTS) == list(range(1, 23))
