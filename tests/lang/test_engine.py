"""SGLang's `Engine` and `global_config`: its spellings, on a runtime in this process's child."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

import lmprog
from lmprog.errors import InvalidParameter, NotSupported, UnknownName
from lmprog.testing import Scripted


@pytest.fixture(scope="module")
def engine() -> Iterator[lmprog.sglang.Engine]:
    with lmprog.sglang.Engine(model_path="nano") as made:
        yield made


def test_one_prompt_gives_one_result_and_many_give_a_list(engine: lmprog.sglang.Engine) -> None:
    params = {"max_new_tokens": 4, "temperature": 0, "skip_special_tokens": True}
    one = engine.generate("One, two,", params)
    assert set(one) == {"text", "meta_info"}
    assert one["meta_info"]["completion_tokens"] <= 4
    many = engine.generate(["One, two,", "Red, green,"], [params, {**params, "regex": "[a-z]{2}"}])
    assert many[0]["text"] == one["text"]
    assert len(many[1]["text"]) == 2
    assert len(engine.generate("One", {"n": 3, "max_new_tokens": 2})) == 3


def test_a_stream_tells_the_whole_text_again_and_again(engine: lmprog.sglang.Engine) -> None:
    params = {"max_new_tokens": 6, "temperature": 0}
    pieces = list(engine.generate("One, two,", params, stream=True))
    assert all(
        after["text"].startswith(before["text"]) for before, after in itertools.pairwise(pieces)
    )
    assert pieces[-1]["text"] == engine.generate("One, two,", params)["text"]
    assert pieces[-1]["meta_info"]["prompt_tokens"] > 0


def test_the_same_on_an_event_loop(engine: lmprog.sglang.Engine) -> None:
    async def main() -> tuple[str, str]:
        params = {"max_new_tokens": 6, "temperature": 0}
        one = await engine.async_generate("One, two,", params)
        last = ""
        async for piece in await engine.async_generate("One, two,", params, stream=True):
            last = piece["text"]
        return one["text"], last

    one, last = asyncio.run(main())
    assert one == last


def test_an_engine_is_a_backend_and_knows_itself(engine: lmprog.sglang.Engine) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("One, two,")
        return s.gen(max_tokens=2).value

    assert program.using(backend=engine).run().value is not None
    engine.flush_cache()
    assert engine.get_server_info()["context_len"] > 0


def test_what_the_engine_does_not_do_is_refused(engine: lmprog.sglang.Engine) -> None:
    with pytest.raises(NotSupported, match="no_stop_trim"):
        engine.generate("x", {"no_stop_trim": True})
    with pytest.raises(InvalidParameter, match="2 sampling_params for 1"):
        engine.generate("x", [{}, {}])
    with pytest.raises(InvalidParameter, match="max_tokenz"):
        engine.generate("x", {"max_tokenz": 3})
    with pytest.raises(NotSupported, match="one prompt"):
        engine.generate(["x", "y"], stream=True)


def test_the_default_backend_is_a_setting_of_global_config() -> None:
    with Scripted() as scripted:
        lmprog.sglang.global_config.default_backend = scripted
        try:
            assert lmprog.sglang.global_config.default_backend is scripted
            lmprog.set_default_backend(None)
            assert lmprog.sglang.global_config.default_backend is None
        finally:
            lmprog.set_default_backend(None)


def test_a_setting_that_could_not_mean_anything_is_refused() -> None:
    assert lmprog.sglang.global_config.verbosity == 0
    lmprog.sglang.global_config.verbosity = 0
    with pytest.raises(NotSupported, match="print nothing"):
        lmprog.sglang.global_config.verbosity = 2
    with pytest.raises(UnknownName, match="default_backend"):
        lmprog.sglang.global_config.verbose = True
    with pytest.raises(AttributeError, match="default_backend"):
        lmprog.sglang.global_config.verbose
