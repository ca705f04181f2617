"""Runtimes as processes, with a scripted child in the place of a model."""

from __future__ import annotations

import gc
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import ContextOverflow, InvalidParameter, ProtocolError, RuntimeGone, UnknownName
from lmprog.launch import RuntimeProcess, child_process, connect, greet
from lmprog.launch.child_process import Child
from lmprog.launch.parent_pipe import config_from_json, config_to_json
from lmprog.launch.runtime_process import configured
from lmprog.linux import is_linux
from lmprog.transport import LocalRuntimeChannel

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def the_scripted_child_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(Path(wire.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), source]))


def scripted(script: str = "ok", **options: Any) -> RuntimeProcess:
    return RuntimeProcess(script, module="scripted_child", **options)


def runs(pid: int) -> bool:
    """A zombie does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not runs(pid)


def environment_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def test_threads_of_the_runtime_do_not_keep_cores_from_each_other_unless_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with scripted() as runtime:
        assert environment_of(runtime.pid)["GOMP_SPINCOUNT"] == "20000"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with scripted() as runtime:
        assert "GOMP_SPINCOUNT" not in environment_of(runtime.pid)


def test_a_runtime_serves_and_ends_with_its_block() -> None:
    with scripted(page_size=4) as runtime:
        assert runtime.alive
        assert runtime.facts["page_size"] == 4
        with runtime.connect() as connection:
            assert connection.info.model == "ok"
            connection.send([wire.Read(1, 2)])
            assert connection.receive(5.0) == [wire.TextIs(2, "canned", 1)]
        with connect(runtime.address) as other:
            assert other.info.page_size == 4
        folder = Path(runtime.address.removeprefix("ipc://")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert runtime.exit_code == 0
    assert not folder.exists()
    runtime.close()
    with pytest.raises(RuntimeGone):
        runtime.connect()


def test_a_death_at_the_start_quotes_the_last_lines_of_the_log() -> None:
    with pytest.raises(RuntimeGone, match=r"exit code 7[\s\S]*the reason of the death"):
        scripted("die")


def test_the_childs_error_is_raised_as_its_own_class() -> None:
    with pytest.raises(ContextOverflow, match="Too long") as caught:
        scripted("fails")
    assert caught.value.limit == 10


def test_a_silent_start_ends_with_what_it_was_doing() -> None:
    with pytest.raises(RuntimeGone, match=r"not ready after 1.5 seconds.*reads the weights"):
        scripted("silent", startup_timeout=1.5)


def test_a_failed_start_leaves_no_folder_and_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for script in ("die", "fails", "silent"):
        with pytest.raises((RuntimeGone, ContextOverflow)):
            scripted(script, startup_timeout=1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_cannot_even_be_started_leaves_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(FileNotFoundError):
        Child(["/no/such/python"], folder)
    assert not folder.exists()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_slow_start_says_what_it_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="lmprog")
    scripted("slow").close()
    assert [record.message for record in caplog.records] == [
        f"lmprog: the runtime reads part {n}" for n in range(4)
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_dead_runtime_fails_every_client_within_two_seconds_and_says_how(
    number: signal.Signals,
) -> None:
    with scripted() as runtime:
        connections = [runtime.connect() for _ in range(3)]
        messages: list[str] = []

        def wait(index: int) -> None:
            with pytest.raises(RuntimeGone) as caught:
                connections[index].receive(30.0)
            messages.append(str(caught.value))

        threads = [threading.Thread(target=wait, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        start = time.monotonic()
        os.kill(runtime.pid, number)
        for thread in threads:
            thread.join(10.0)
        assert time.monotonic() - start < 2.0
        assert len(messages) == 3
        assert all(number.name in message for message in messages)
        assert not runtime.alive
        assert runtime.exit_code == -number
        for connection in connections:
            connection.close()


def test_a_runtime_that_ignores_its_end_is_killed_after_the_grace() -> None:
    runtime = scripted("stubborn")
    start = time.monotonic()
    runtime.close(grace=0.5)
    assert 0.4 < time.monotonic() - start < 2.0
    assert runtime.exit_code == -signal.SIGKILL


def test_a_child_without_a_grace_is_not_told_to_end_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would begin to, and say goodbye to its clients as if nothing was wrong."""
    told: list[int] = []
    monkeypatch.setattr(subprocess.Popen, "send_signal", lambda _, number: told.append(number))
    runtime = scripted("stubborn")
    monkeypatch.setattr(subprocess.Popen, "kill", lambda one: os.kill(one.pid, signal.SIGKILL))
    runtime.close(0.0)
    assert told == []
    assert runtime.exit_code == -signal.SIGKILL


@pytest.mark.skipif(not is_linux(), reason="the system does not tell of signals")
def test_stacks_that_cannot_be_written_are_waited_for_one_second_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that is blocked in a full pipe does not get to handle the signal, say."""
    now, waited = 0.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now, waited
        now, waited = now + seconds, waited + seconds

    code = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}); "
    child = Child([sys.executable, "-c", code + "print(1, flush=True); time.sleep(60)"], tmp_path)
    try:
        while not child.last_lines():
            time.sleep(0.01)
        monkeypatch.setattr(child_process.time, "monotonic", lambda: now)
        monkeypatch.setattr(child_process.time, "sleep", sleep)
        child.write_stacks()
    finally:
        monkeypatch.undo()
        child.stop(0.0)
    assert 0.9 < waited < 1.1


@pytest.mark.skipif(not is_linux(), reason="the system does not tell of ends")
def test_the_end_of_a_runtime_is_waited_for_without_looking_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(subprocess.time, "sleep", sleeps.append)
    scripted().close()
    assert sleeps == []


@pytest.mark.parametrize("script", ["ok", "stubborn"])
def test_no_child_outlives_a_killed_parent_by_two_seconds(script: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, str(HERE / "parent.py"), script, "waits"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout
    pid = int(parent.stdout.readline())
    folder = Path(parent.stdout.readline().strip()).parent
    assert runs(pid)
    assert folder.is_dir()
    parent.kill()
    parent.communicate()
    assert ends_within(pid, 2.0)
    assert not folder.exists()


@pytest.mark.parametrize("ending", ["ends", "raises"])
def test_a_program_that_forgets_to_close_leaves_nothing_behind(ending: str) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "parent.py"), "ok", ending],
        capture_output=True,
        text=True,
        check=False,
    )
    pid, address = done.stdout.split()
    assert ends_within(int(pid), 2.0)
    assert not Path(address).parent.exists()
    assert done.returncode == (0 if ending == "ends" else 1)


def test_an_abandoned_runtime_ends_when_nothing_refers_to_it() -> None:
    runtime = scripted()
    pid, connection = runtime.pid, runtime.connect()
    del runtime
    gc.collect()
    assert runs(pid)  # the connection still needs it
    connection.close()
    del connection
    gc.collect()
    assert ends_within(pid, 2.0)


def test_a_forked_process_does_not_end_its_parents_runtime() -> None:
    code = (
        "import os, sys\n"
        "from lmprog.launch import RuntimeProcess\n"
        "runtime = RuntimeProcess('ok', module='scripted_child')\n"
        "if os.fork() == 0:\n    sys.exit(0)\n"  # runs the exit handlers
        "os.wait()\n"
        "print(runtime.alive)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_ctrl_c_in_the_terminal_does_not_reach_the_runtime() -> None:
    with scripted() as runtime:
        assert os.getpgid(runtime.pid) != os.getpgid(0)


def test_a_file_in_the_users_folder_does_not_stand_in_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zmq.py").write_text("raise RuntimeError('the wrong zmq')")
    monkeypatch.chdir(tmp_path)
    scripted().close()


def test_options_are_laid_over_both_configurations() -> None:
    config = configured(RuntimeConfig(model="m", threads=3), {"page_size": 1, "dtype": "bfloat16"})
    assert config == RuntimeConfig(
        model="m", threads=3, dtype="bfloat16", scheduler=SchedulerConfig(page_size=1)
    )
    assert config_from_json(config_to_json(config)) == config


def test_an_unknown_option_or_a_wrong_type_is_refused_before_anything_starts() -> None:
    with pytest.raises(UnknownName, match="pagesize"):
        scripted(pagesize=4)
    with pytest.raises(InvalidParameter, match="threads"):
        scripted(threads="many")
    with pytest.raises(InvalidParameter, match="address"):
        scripted(address="tcp://0.0.0.0:80")


def test_a_runtime_can_serve_on_tcp_loopback() -> None:
    with scripted(address="tcp://127.0.0.1:*") as runtime:
        assert runtime.address.startswith("tcp://127.0.0.1:")
        with connect(runtime.address) as connection:
            assert connection.info.model == "ok"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (wire.Failed(None, "protocol", "another version"), "another version"),
        (wire.Welcome(99, "fake", 1, 1, 1, 1, 0), "version 99"),
        (wire.Described(1, {}), "answered the greeting with Described"),
    ],
    ids=["refused", "welcomed", "answered something else"],
)
def test_a_runtime_of_another_version_is_a_protocol_error(answer: wire.Reply, message: str) -> None:
    local = LocalRuntimeChannel()
    channel = local.connect()

    def reply() -> None:
        ((client, _),) = local.receive(5.0)
        local.send([(client, answer)])

    other = threading.Thread(target=reply)
    other.start()
    with pytest.raises(ProtocolError, match=message):
        greet(channel)
    other.join()


def test_a_runtime_that_does_not_answer_the_greeting_is_gone() -> None:
    with pytest.raises(RuntimeGone, match=r"within 0\.2 seconds"):
        greet(LocalRuntimeChannel().connect(), timeout=0.2)


def test_what_the_child_reports_is_one_json_line(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+b") as out, (tmp_path / "alive").open("w+b") as alive:
        done = subprocess.run(
            [sys.executable, str(HERE / "scripted_child.py"), "--config-json", config_to_json(RuntimeConfig("fails")),
             "--address", f"ipc://{tmp_path}/s", "--ready-fd", str(out.fileno()), "--parent-fd", str(alive.fileno())],
            pass_fds=(out.fileno(), alive.fileno()), check=False,
        )  # fmt: skip
        out.seek(0)
        said = json.loads(out.read())
    assert done.returncode != 0
    assert said == {
        "error": {
            "code": "context_overflow",
            "message": "Too long.",
            "details": {"prompt": 9, "max_tokens": 2, "limit": 10},
        }
    }


def test_runtimes_leave_no_descriptor_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for script in ("ok", "fails", "ok"):
        try:
            scripted(script).close()
        except ContextOverflow:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_can_be_stopped_by_several_threads_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each descriptor is closed once: a second time it may be somebody else's."""
    child = Child([sys.executable, "-c", "pass"], tmp_path)
    child.wait(30)
    together = threading.Barrier(8)
    closed: list[int] = []
    descriptors = child._ready_fd, child._life_fd
    plain = os.close

    def close(descriptor: int) -> None:
        if descriptor in descriptors:
            closed.append(descriptor)
            time.sleep(0.01)  # another thread's turn
        else:
            plain(descriptor)

    monkeypatch.setattr(os, "close", close)

    def stop() -> None:
        together.wait()
        child.stop(0.0)

    threads = [threading.Thread(target=stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert sorted(closed) == sorted(descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
