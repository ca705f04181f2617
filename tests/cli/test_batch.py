"""`lmprog batch`: every line is answered once, whatever stops it in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lmprog.cli import batch, main
from tests.cli.scripted_http import ScriptedHttp

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "temperature": 0}


def line(custom_id: str, url: str = "/v1/chat/completions", **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body or CHAT})


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(one) for one in path.read_text().splitlines()]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def command(files: tuple[Path, Path], url: str, *more: str) -> int:
    return main(["batch", "-i", str(files[0]), "-o", str(files[1]), "--url", url, *more])


def test_every_line_is_answered_in_the_batch_format(
    files: tuple[Path, Path], served: tuple[str, str]
) -> None:
    source, target = files
    source.write_text(
        "\n".join(
            [
                *(line(f"chat-{number}") for number in range(6)),
                line("text", "/v1/completions", prompt="One, two,", max_tokens=2),
                line("native", "/generate", text="One", sampling_params={"max_new_tokens": 2}),
                line("response", "/v1/responses", input="Hi", max_output_tokens=2),
            ]
        )
    )
    assert command(files, served[0], "--api-key", served[1], "--concurrency", "3") == 0
    made = {one["custom_id"]: one for one in written(target)}
    assert len(made) == len(written(target)) == 9
    for one in made.values():
        assert set(one) == {"id", "custom_id", "response", "error"}
        assert one["error"] is None
        assert one["response"]["status_code"] == 200
        assert one["response"]["request_id"]
    assert made["chat-1"]["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert (
        made["chat-1"]["response"]["body"]["choices"]
        == made["chat-2"]["response"]["body"]["choices"]
    )


def good(number: int, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    return 200, {"x-request-id": f"r{number}"}, json.dumps({"said": body}).encode()


def test_what_is_answered_is_not_asked_again_and_a_torn_line_is(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = files
    source.write_text(
        "\n".join(line(f"{number}", "/v1/completions", prompt=f"{number}") for number in range(5))
    )
    with ScriptedHttp(good) as server:
        assert command(files, server.url) == 0
        whole = target.read_bytes().splitlines(keepends=True)
        target.write_bytes(b"".join(whole[:3]) + whole[3][:-10])
        assert command(files, server.url) == 0
        asked = [body["prompt"] for body in server.bodies]
        there = [json.loads(one)["custom_id"] for one in whole[:3]]
        assert sorted(asked[5:]) == sorted({"0", "1", "2", "3", "4"} - set(there))
        assert sorted(one["custom_id"] for one in written(target)) == ["0", "1", "2", "3", "4"]
        assert command(files, server.url) == 0
        assert len(server.bodies) == 7
    assert "torn" in capsys.readouterr().err


def test_a_refusal_is_an_answer_and_counts_as_failed(
    files: tuple[Path, Path], served: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = files
    source.write_text(line("bad", messages=[], max_tokens=1) + "\n" + line("good"))
    assert command(files, served[0], "--api-key", served[1]) == 1
    made = {one["custom_id"]: one for one in written(target)}
    assert made["bad"]["response"]["status_code"] == 400
    assert "messages" in made["bad"]["response"]["body"]["error"]["message"]
    assert "1 answered, 1 failed, 0 there before" in capsys.readouterr().err


def test_an_overloaded_server_is_asked_again_as_late_as_it_says(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(batch.BatchFile, "_pause", lambda _, seconds: waited.append(seconds))

    def full_at_first(number: int, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        return (429, {"retry-after": "2"}, b"{}") if number < 3 else good(number, body)

    files[0].write_text(line("one"))
    with ScriptedHttp(full_at_first) as server:
        assert command(files, server.url) == 0
    assert waited == [2.0, 4.0, 8.0]
    with ScriptedHttp(lambda number, body: (503, {}, b"")) as server:
        files[0].write_text(line("two"))
        assert command(files, server.url) == 1
        assert len(server.bodies) == batch.MOST_TRIES
    last = written(files[1])[-1]
    assert last["response"] is None
    assert last["error"]["code"] == "overloaded"


def test_who_got_no_response_is_asked_again_next_time(files: tuple[Path, Path]) -> None:
    files[0].write_text(line("one"))
    assert command(files, "http://127.0.0.1:9") == 1
    (first,) = written(files[1])
    assert first["response"] is None
    assert first["error"]["code"] == "runtime_gone"
    with ScriptedHttp(good) as server:
        assert command(files, server.url) == 0
    assert [one["response"] is None for one in written(files[1])] == [True, False]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "line 1 is no JSON"),
        ("[]", "line 1 is no JSON object"),
        ("{}", "line 1 has no custom_id"),
        (line("a") + "\n" + line("a"), "'a' stands twice"),
        (line("a", "/v1/embeddings"), "url one of"),
        (line("a", messages=[], stream=True), "answered whole"),
        ('{"custom_id": "a", "url": "/generate"}', "line 1 has no body"),
        (line("a").replace("POST", "GET"), "method must be POST"),
    ],
)
def test_a_wrong_input_is_refused_before_anything_is_asked(
    files: tuple[Path, Path], text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].write_text(text)
    assert command(files, "http://127.0.0.1:9") == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not files[1].exists()


def test_an_output_that_is_something_else_is_not_touched(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].write_text(line("a"))
    files[1].write_text("my diary\nsecond page\n")
    assert command(files, "http://127.0.0.1:9") == 2
    assert "is this the output file?" in capsys.readouterr().err
    assert files[1].read_text() == "my diary\nsecond page\n"
