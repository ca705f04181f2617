"""Pages with frames: who needs one, what can be gone on from, and what all of it takes. The fake model
keeps what is in the window in frames, too, and a wrong one changes its text."""

from __future__ import annotations

import random
from array import array

import pytest

from lmprog.config import SchedulerConfig
from lmprog.radix.frames import WindowPages, WindowPool
from lmprog.runtime.scheduling.scheduler import IdleMemory
from lmprog.runtime.scheduling.window_pages import Windows
from tests.runtime.rig import Rig, expected

POOL = WindowPool(window=8, num_pages=24, page_bytes=1, frame_bytes=5)


def pages_of(pool: WindowPool = POOL, page_size: int = 4) -> WindowPages:
    return WindowPages(pool, page_size)


def taken(pages: WindowPages, count: int) -> list[int]:
    found = pages.allocate(count)
    assert found is not None
    return found


def framed(pages: WindowPages, path: list[int]) -> list[bool]:
    return [pages.frames[page] > 0 for page in path]


def rig_of(num_pages: int = 60, **fields: object) -> Rig:
    config = SchedulerConfig(**({"page_size": 4, "num_pages": num_pages} | fields))
    return Rig(config, windows=WindowPool(8, num_pages, 1, 5))


def num_frames(rig: Rig) -> int:
    assert isinstance(rig.scheduler.pages, WindowPages)
    return sum(frame > 0 for frame in rig.scheduler.pages.frames)


def numbers(count: int, seed: int = 1) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(97) for _ in range(count)]


def test_a_page_is_allocated_with_a_frame_of_its_own() -> None:
    pages = pages_of()
    held = taken(pages, 24)
    assert sorted(pages.frames[page] for page in held) == list(range(1, 25))
    assert pages.num_free == 0
    assert pages.allocate(1) is None
    pages.free(held)
    assert pages.num_free == 24


def test_without_its_frame_a_page_takes_less_and_more_of_them_fit() -> None:
    pages = pages_of()
    whole: list[int] = []
    while (found := pages.allocate(1)) is not None:
        whole += found
        pages.let_go(found)
    assert len(whole) > 100, "a page with its frame takes six bytes, one without takes one"
    pages.check(whole)


def test_the_frame_that_was_let_go_first_goes_first() -> None:
    pages = pages_of()
    held = taken(pages, 24)
    for page in (held[5], held[2], held[9]):
        pages.let_go([page])
    taken(pages, 1)  # six bytes: two frames
    assert framed(pages, [held[5], held[2], held[9]]) == [False, False, True]


def test_a_frame_that_is_held_or_in_a_stretch_stays() -> None:
    pages = pages_of()
    path = taken(pages, 6)
    assert pages.keep(path, 24) is not None
    pages.let_go(path)
    pages.trim()
    assert framed(pages, path) == [False] * 4 + [True] * 2
    pages.check(path)


def test_a_stretch_is_gone_with_one_of_its_whole_pages() -> None:
    pages = pages_of()
    path = taken(pages, 6)
    pages.keep(path, 24)
    pages.let_go(path)
    pages.free(path[5:])
    pages.trim()
    assert not any(framed(pages, path[:5]))
    pages.check(path[:5])


def test_a_stretch_that_ends_inside_a_page_outlives_that_one() -> None:
    """The tree may have its tokens elsewhere."""
    pages = pages_of()
    path = taken(pages, 6)
    pages.keep(path, 22)
    pages.let_go(path)
    pages.free(path[5:])
    pages.trim()
    assert framed(pages, path[:5]) == [False] * 3 + [True] * 2
    assert pages.last_usable(path[:5], None, 20) == 20


@pytest.mark.parametrize(
    ("missing", "length", "usable"),
    [
        ((), 24, 24),
        ((3,), 24, 24),  # the next token sees positions 17 to 24
        ((4,), 24, 16),
        ((5,), 24, 20),
        ((0,), 24, 24),
        ((1, 3, 5), 24, 4),
        ((0, 2, 4, 5), 24, 0),
        ((2,), 23, 23),
        ((6,), 26, 24),
    ],
)
def test_a_prefix_can_be_gone_on_from_where_the_window_before_it_has_frames(
    missing: tuple[int, ...], length: int, usable: int
) -> None:
    pages = pages_of()
    path = taken(pages, 7)
    pages.let_go(path[index] for index in missing)
    pages.trim()
    part = path[length // 4] if length % 4 else None
    assert pages.last_usable(path[: length // 4], part, length) == usable


def test_memory_of_free_pages_is_returned_before_both_kinds_take_more_than_there_may_be() -> None:
    pages, returned = pages_of(), list[int]()
    pages.give_back = returned.extend
    pages.free(taken(pages, 24))
    pages.settle()
    assert not returned, "all that was used is what there may be"
    held = []
    for _ in range(30):
        held += taken(pages, 1)
        pages.let_go(held[-1:])
        pages.trim()
    pages.settle()
    free = [page for page in range(pages.num_numbers) if page not in held]
    assert returned[: len(free)] == free
    assert len(returned) == len(free) + 5 * POOL.num_pages, "behind them the parts of all frames"


def test_a_running_sequence_holds_the_frames_of_its_window_only() -> None:
    rig = rig_of(num_pages=20)
    prompt = numbers(100)
    sequence = rig.gen(prompt, 30)
    most = 0
    while not rig.scheduler.idle:
        rig.step()
        if sequence.computed > 104:
            rig.scheduler.pages.trim()
            most = max(most, num_frames(rig))
    assert list(sequence.tokens) == [*prompt, *expected(prompt, 30)]
    assert most == 3, "a window of 8 lies in three pages"


def test_a_sequence_may_be_longer_than_all_pages_with_their_frames() -> None:
    rig = rig_of(num_pages=20)
    assert rig.scheduler.longest_sequence > 3 * 20 * 4
    prompt = numbers(rig.scheduler.longest_sequence - 8)
    sequence = rig.gen(prompt, 8)
    rig.run()
    assert list(sequence.tokens) == [*prompt, *expected(prompt, 8)]


@pytest.mark.parametrize("length", [40, 41, 43])
def test_forks_go_on_where_a_branch_ended(length: int) -> None:
    """Inside a page, too; each finds all of what they have in common."""
    rig = rig_of()
    first = rig.gen(numbers(length - 1), 1)
    rig.run()
    prompts = [[*first.tokens, token, *numbers(20, token)] for token in range(3)]
    forks = [rig.gen(prompt, 12) for prompt in prompts]
    rig.run()
    for fork, prompt in zip(forks, prompts, strict=True):
        assert list(fork.tokens) == [*prompt, *expected(prompt, 12)]
    computed = sum(len(fork.tokens) - 1 - fork.num_found for fork in forks)
    assert computed <= 3 * 33, "what was computed before is not computed again"


def test_what_parts_in_the_middle_of_a_prompt_is_computed_again_once() -> None:
    """From then on the frames before the fork stay."""
    rig = rig_of()
    base = numbers(60)
    rig.gen(base, 2)
    rig.run()
    rig.scheduler.pages.trim()
    found = []
    for token in range(3):
        prompt = [*base[:40], token, *numbers(30, token)]
        sequence = rig.gen(prompt, 2)
        rig.run()
        rig.scheduler.pages.trim()
        assert list(sequence.tokens) == [*prompt, *expected(prompt, 2)]
        found.append(sequence.num_found)
    assert found == [0, 40, 40]


def test_where_texts_part_the_window_stays_though_each_of_them_passes_it() -> None:
    """Nobody had to compute it again: the first to part found the frames that were still there."""
    rig = rig_of()
    base = numbers(40)
    rig.gen([*base, *numbers(12, 9)], 2)
    rig.run()
    for token in range(4):
        prompt = [*base, token, *numbers(30, token)]
        sequence = rig.gen(prompt, 2)
        rig.run()
        rig.scheduler.pages.trim()
        assert list(sequence.tokens) == [*prompt, *expected(prompt, 2)]
        assert sequence.num_found == 40


def test_what_one_sequence_went_on_from_may_go_when_it_has_passed_it() -> None:
    rig = rig_of()
    tokens = numbers(40)
    for _ in range(4):  # turns of a chat
        turn = rig.gen(tokens, 12)
        rig.run()
        assert turn.num_found >= len(tokens) - 21 or len(tokens) == 40
        tokens = [*turn.tokens, *numbers(20, len(tokens))]
    rig.scheduler.pages.trim()
    assert num_frames(rig) <= 4


def test_a_preempted_sequence_goes_on_where_it_was() -> None:
    rig = rig_of()
    prompt = numbers(50)
    sequence = rig.gen(prompt, 20)
    for _ in range(8):
        rig.step()
    rig.scheduler.preempt(sequence)
    rig.scheduler.pages.trim()
    rig.run()
    assert list(sequence.tokens) == [*prompt, *expected(prompt, 20)]
    assert not sequence.group.recomputed


def test_an_idle_runtime_gives_back_frames_and_pages() -> None:
    rig = rig_of()
    pages, given = rig.scheduler.pages, list[int]()
    assert isinstance(pages, WindowPages)
    pages.give_back = given.extend
    rig.gen(numbers(50), 4)
    rig.run()
    idle = IdleMemory(rig.scheduler, pages.return_memory, seconds=1.0)
    idle.turn(0.0)
    idle.turn(1.0)
    assert len(given) == pages.num_numbers + pages.num_pages * pages.num_parts
    assert given == sorted(given)


def test_frames_that_several_need_are_held_by_each() -> None:
    rig = rig_of()
    first = rig.gen(numbers(30), 1)
    rig.run()
    forks = [rig.gen([*first.tokens, token], 6) for token in range(3)]
    rig.step()
    rig.scheduler.end(forks[0])
    rig.scheduler.pages.trim()
    rig.run()
    for fork in forks[1:]:
        prompt = list(fork.tokens)[:32]
        assert list(fork.tokens) == [*prompt, *expected(prompt, 6)]


def test_a_page_of_a_model_whose_layers_all_have_windows_counts_a_little() -> None:
    pool = WindowPool(8, 10, 0, 1600)
    assert pool.counted_bytes == 100
    assert pool.num_numbers == 170
    rig = Rig(SchedulerConfig(page_size=4, num_pages=10), windows=pool)
    prompt = array("i", numbers(200))
    sequence = rig.gen(prompt, 8)
    rig.run()
    assert list(sequence.tokens) == [*prompt, *expected(prompt, 8)]


def test_growth_is_counted_in_bytes() -> None:
    """A text that is longer than the window takes no further frames; one that pauses needs its own."""
    windows = Windows(POOL, 4)
    assert windows.cost_of_growth(24.0) == 4.0
    assert windows.cost_of_growth(24.0, (), 2) == (24 + 2 * 3 * 5) / 6
    rig = rig_of(num_pages=20)
    texts = [rig.gen(numbers(6, seed), 96) for seed in range(3)]
    most = 0
    while not rig.scheduler.idle:
        rig.step()
        most = max(most, len(rig.scheduler.running))
    assert most == 2, "each takes 26 pages and three frames; of pages with frames there are 20"
    for seed, text in enumerate(texts):
        assert list(text.tokens) == [*numbers(6, seed), *expected(numbers(6, seed), 96)]


def test_chats_in_half_the_memory_that_all_layers_need_compute_nothing_twice() -> None:
    """Six chats of four turns that come back in turn: 28 pages of 16 tokens each in the end."""

    def computed(num_pages: int, window: int | None) -> int:
        config = SchedulerConfig(page_size=16, num_pages=num_pages, speculation="off")
        pool = None if window is None else WindowPool(window, num_pages, 1, 5)
        rig = Rig(config, windows=pool)
        chats = [numbers(300, seed) for seed in range(6)]
        for turn in range(4):
            for chat, tokens in enumerate(chats):
                sequence = rig.gen(tokens, 4)
                rig.run()
                chats[chat] = [*sequence.tokens, *numbers(30, 10 * chat + turn)]
        return rig.scheduler.stats.computed_tokens

    least = computed(1000, None)
    assert computed(78, 64) == least
    assert computed(78, None) > 1.5 * least
