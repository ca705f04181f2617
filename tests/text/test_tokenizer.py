"""Encoding, decoding, streaming and the reading of a checkpoint's files."""

from __future__ import annotations

import functools
import json
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from lmprog.errors import ModelError
from lmprog.runtime.engine.model.locate import dummy_shape
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.text.chat_template import load_template
from lmprog.runtime.text.text_service import TextService
from lmprog.runtime.text.tokenizer import ByteTokenizer, HfTokenizer, load_tokenizer
from lmprog.runtime.text.tool_call_derivation import tool_support
from lmprog.tool_calls.constraining import ToolShape, calls_constraint
from lmprog.tool_calls.harmony import MARKS, shown_marks
from tests.text.checkpoints import KINDS, byte_level, llama, save, unigram
from tests.tool_calls.call_templates import CHANNELS, FAMILIES, native

AnyTokenizer = HfTokenizer | ByteTokenizer
NAMES = ["bytes", *KINDS]
HARD_TEXTS = [
    "",
    "plain words, and  two spaces",
    "日本語のテキスト、中文。",
    "👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 e\u0301",
    "tabs\tand\nlines\r\n\x00\x7f",
    "<|im_start|>user\nhi<|im_end|>",
    " leading and trailing ",
]
MIXED = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("👨\u200d👩🏽 日本é▁ \n")),
    max_size=30,
)


@pytest.mark.parametrize("name", NAMES)
def test_the_pieces_of_a_stream_joined_are_the_whole_decoded(
    name: str, tokenizers: dict[str, AnyTokenizer]
) -> None:
    tokenizer = tokenizers[name]

    @settings(max_examples=800, database=None)
    @given(st.lists(st.integers(-1, tokenizer.vocab_size + 1), max_size=24))
    def check(tokens: list[int]) -> None:
        stream = tokenizer.stream()
        pieces = [stream.push(token) for token in tokens]
        assert "".join(pieces) + stream.finish() == tokenizer.decode(tokens)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_every_text_survives_its_tokens_and_streams_without_replacement(
    name: str, tokenizers: dict[str, AnyTokenizer]
) -> None:
    tokenizer = tokenizers[name]

    @settings(max_examples=300, database=None)
    @given(MIXED.filter(lambda text: "\ufffd" not in text))
    def check(text: str) -> None:
        tokens = tokenizer.encode(text, start=False)
        if name == "llama" or name == "unigram":
            text = text.replace("▁", " ")  # SentencePiece cannot tell them apart
        assert tokenizer.decode(tokens, skip_special=False) == text
        stream = tokenizer.stream()
        assert "\ufffd" not in "".join(stream.push(token) for token in tokens)

    check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_encoding_is_the_librarys_own_without_its_frame(
    kind: str, text: str, tokenizers: dict[str, AnyTokenizer]
) -> None:
    assert tokenizers[kind].encode(text) == KINDS[kind]().encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_decoding_what_was_encoded_is_what_the_library_decodes(
    kind: str, text: str, tokenizers: dict[str, AnyTokenizer]
) -> None:
    """But for the space that SentencePiece puts before a text, which the library takes away
    again.
    """
    library: Library = KINDS[kind]()
    tokens = library.encode(text, add_special_tokens=False).ids
    ours = tokenizers[kind].decode(tokens)
    expected = library.decode(tokens, skip_special_tokens=True)
    assert ours in (expected, " " + expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_of_tokens_joined_are_the_text(
    name: str, tokenizers: dict[str, AnyTokenizer]
) -> None:
    tokenizer = tokenizers[name]
    text = "The dog 👍🏽 日本 sleeps.\n"
    pieces = [tokenizer.token_bytes(token) for token in tokenizer.encode(text, start=False)]
    assert b"".join(piece or b"" for piece in pieces) == text.encode()


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_have_no_bytes_and_show_only_when_asked_for(
    name: str, tokenizers: dict[str, AnyTokenizer]
) -> None:
    tokenizer = tokenizers[name]
    special = "<|system|>" if name == "bytes" else "<|im_end|>"
    tokens = tokenizer.encode(f"a{special}b", start=False)
    marks = [token for token in tokens if tokenizer.token_bytes(token) is None]
    assert [tokenizer.token_text(token) for token in marks] == [special]
    assert tokenizer.decode(tokens).replace(" ", "") == "ab"
    assert special in tokenizer.decode(tokens, skip_special=False)


def test_an_added_token_that_is_not_special_is_text(tokenizers: dict[str, AnyTokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    (token,) = tokenizer.encode("<tool>")
    assert tokenizer.token_bytes(token) == b"<tool>"
    assert tokenizer.decode([token]) == "<tool>"


@pytest.mark.parametrize("kind", ["llama", "unigram"])
def test_a_text_that_goes_on_gets_no_space_of_its_own(
    kind: str, tokenizers: dict[str, AnyTokenizer]
) -> None:
    tokenizer = tokenizers[kind]
    assert tokenizer.decode(tokenizer.encode("dog")) == " dog"
    assert tokenizer.decode(tokenizer.encode("dog", start=False)) == "dog"
    together = tokenizer.encode("the dog") + tokenizer.encode(". dog", start=False)
    assert tokenizer.decode(together) == " the dog. dog"


def test_a_copied_stream_goes_its_own_way(tokenizers: dict[str, AnyTokenizer]) -> None:
    tokenizer = ByteTokenizer()
    first = tokenizer.stream()
    tokens = tokenizer.encode("é日")
    assert first.push(tokens[0]) == ""
    second = first.copy()
    assert first.push(tokens[1]) == "é"
    assert second.push(tokens[2]) == "\ufffd"
    assert second.push(tokens[3]) + second.push(tokens[4]) == "日"


# --- a checkpoint's files -------------------------------------------------------------------------


def test_the_prefix_is_what_the_post_processor_puts_in_front_and_no_suffix_is_added(
    tmp_path: Path,
) -> None:
    assert HfTokenizer(save(tmp_path / "a", llama())).prefix == (1,)
    framed = HfTokenizer(save(tmp_path / "b", unigram()))
    assert framed.prefix == (1,)
    assert framed.encode("the dog")[-1] != 2
    assert HfTokenizer(save(tmp_path / "c", byte_level())).prefix == ()


@pytest.mark.parametrize(
    ("make", "add", "prefix"), [(llama, False, ()), (byte_level, True, (1,)), (llama, True, (1,))]
)
def test_add_bos_token_of_the_configuration_decides_where_it_is_given(
    make: object, add: bool, prefix: tuple[int, ...], tmp_path: Path
) -> None:
    assert callable(make)
    folder = save(tmp_path, make(), tokenizer_config={"bos_token": "<s>", "add_bos_token": add})
    assert HfTokenizer(folder).prefix == prefix


def test_eos_ids_come_from_the_generation_settings_and_the_tokenizer(tmp_path: Path) -> None:
    own = {"eos_token": "<|im_end|>"}
    both = save(
        tmp_path / "a",
        byte_level(),
        config={"eos_token_id": 77},
        generation_config={"eos_token_id": [2, 4]},
        tokenizer_config=own,
    )
    assert HfTokenizer(both).eos_ids == (2, 4)
    config = save(tmp_path / "b", byte_level(), config={"eos_token_id": 2}, tokenizer_config=own)
    assert HfTokenizer(config).eos_ids == (2, 4)
    nested = save(tmp_path / "c", byte_level(), config={"text_config": {"eos_token_id": 3}})
    assert HfTokenizer(nested).eos_ids == (3,)
    assert HfTokenizer(save(tmp_path / "d", byte_level())).eos_ids == ()


def test_tokens_that_only_the_configuration_declares_are_added_at_their_ids(tmp_path: Path) -> None:
    size = byte_level().get_vocab_size(with_added_tokens=True)
    declared = {
        str(size): {"content": "<think>", "special": False},
        "9999": {"content": "<far>", "special": True},
    }
    tokenizer = HfTokenizer(
        save(tmp_path, byte_level(), tokenizer_config={"added_tokens_decoder": declared})
    )
    assert tokenizer.encode("<think>") == [size]
    assert tokenizer.vocab_size == size + 1
    assert len(tokenizer.encode("<far>")) > 1


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    made = byte_level()
    made.enable_truncation(3)
    made.enable_padding(length=8)
    tokenizer = HfTokenizer(save(tmp_path, made))
    assert (
        tokenizer.decode(tokenizer.encode("a long text that is not cut"))
        == "a long text that is not cut"
    )


def test_a_folder_without_a_tokenizer_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        HfTokenizer(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {"type": "Nothing"}}'])
def test_a_broken_tokenizer_file_says_so(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        HfTokenizer(tmp_path)


def test_a_tokenizer_whose_tokens_are_no_pieces_of_text_is_refused(tmp_path: Path) -> None:
    description = json.loads(byte_level().to_str())
    description["pre_tokenizer"] = {"type": "Whitespace"}
    description["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(ModelError, match="WordPiece"):
        HfTokenizer(tmp_path)


def test_a_model_without_files_speaks_bytes() -> None:
    tokenizer = load_tokenizer(None)
    assert isinstance(tokenizer, ByteTokenizer)
    assert tokenizer.encode("é<eos>") == [0xC3, 0xA9, tokenizer.eos_ids[0]]
    assert tokenizer.prefix == (256,)
    assert tokenizer.vocab_size == 263


def with_tags(folder: Path) -> HfTokenizer:
    """A checkpoint whose calls are written with special tokens."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["[TOOL_CALLS]", "[ARGS]"])
    config = {"eos_token": "<|im_end|>", "chat_template": native(FAMILIES["devstral"])}
    return HfTokenizer(save(folder, tokenizer, tokenizer_config=config))


def test_special_tokens_are_no_part_of_texts_until_they_are_shown(tmp_path: Path) -> None:
    tokenizer = with_tags(tmp_path)
    tokens = tokenizer.encode("[TOOL_CALLS]a<|im_end|>", start=False)
    assert tokenizer.decode(tokens) == "a"
    tokenizer.show("[TOOL_CALLS] and [ARGS], <|im_end|>")
    assert tokenizer.decode(tokens) == "[TOOL_CALLS]a"
    assert "".join(map(tokenizer.stream().push, tokens)) == "[TOOL_CALLS]a"


def test_a_shown_token_stays_special_in_what_users_write(tmp_path: Path) -> None:
    tokenizer = with_tags(tmp_path)
    tokenizer.show("[ARGS]")
    (tag,) = tokenizer.encode("[ARGS]", start=False)
    assert tokenizer.is_special(tag)
    assert tag not in tokenizer.encode_quoting("[ARGS]", [(0, 6)], start=False)
    assert TextService(tokenizer, tokenizer.vocab_size, 100).guard.holds("say [ARGS]")


def test_a_constraint_of_calls_forces_the_tags_as_the_tokens_that_they_are(tmp_path: Path) -> None:
    tokenizer = with_tags(tmp_path)
    form = tool_support(load_template(tmp_path)).form
    tokenizer.show("".join(form.literals))
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    spec = calls_constraint(form, [ToolShape("now", nothing)], many=False)
    constraints = CallConstraints(tokenizer)
    made = constraints.compile(spec)
    tokens = constraints.forcing(made, made.start, array("i"))
    assert list(tokens) == tokenizer.encode("[TOOL_CALLS]now[ARGS]{}", start=False)
    assert made.is_done(functools.reduce(made.advance, tokens, made.start))


def test_the_marks_of_channels_are_part_of_texts_and_forced_as_their_tokens(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([*MARKS, "<|return|>", "<|call|>"])
    config = {"eos_token": "<|return|>", "chat_template": CHANNELS}
    made = HfTokenizer(save(tmp_path, tokenizer, tokenizer_config=config))
    form = tool_support(load_template(tmp_path), ["<|return|>"]).form
    made.show(shown_marks(form))
    text = "<|channel|>analysis<|message|>So.<|end|>"
    tokens = made.encode(text + "<|return|>", start=False)
    assert made.decode(tokens) == text
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    constraints = CallConstraints(made)
    compiled = constraints.compile(calls_constraint(form, [ToolShape("now", nothing)], many=False))
    state = compiled.start
    for token in made.encode("<|channel|>commentary to=fun", start=False):
        state = compiled.advance(state, token)
    rest = made.encode("ctions.now <|constrain|>json<|message|>{}", start=False)
    assert list(constraints.forcing(compiled, state, array("i")))[-len(rest) :] == rest


def test_a_model_without_files_has_all_tokens_of_its_tokenizer() -> None:
    """A chat with one failed: the vocabulary had been given one special token fewer."""
    assert dummy_shape("dummy:tiny").vocab_size == ByteTokenizer().vocab_size
