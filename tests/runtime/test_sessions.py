"""Rules of sessions whose harnesses send each turn as a request of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from benchmarks.virtual_time import CONFIG, TOKEN, commit, submit
from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.radix.eviction import NUM_AGES, age_of
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.runtime.scheduling import sessions
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import SequenceGroup, SessionTurn
from lmprog.runtime.scheduling.sessions import PauseTimes
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.simulation.fake_engine import LetterTokenizer
from lmprog.wire import Append, Close, Generate, Open, TextPiece
from tests.runtime.talk import GREEDY, Talk

DICE = random.Random(7)


def text(count: int) -> list[int]:
    return [DICE.getrandbits(30) for _ in range(count)]


@dataclass(eq=False)
class Machine:
    """A scheduler of 4,096 tokens, whose steps take 10 ms and 0.1 ms a token."""

    now: float = 0.0
    num_asked: int = 0

    def __post_init__(self) -> None:
        config: SchedulerConfig = CONFIG
        fields = {name: getattr(config, name) for name in ("page_size", "speculation", "admission")}
        self.scheduler = Scheduler(
            SchedulerConfig(**fields, num_pages=256), 4096, clock=lambda: self.now
        )

    def begin(
        self,
        prompt: list[int],
        answer: int = 4,
        *,
        client: str = "",
        name: str = "",
        label: str = "",
        tool: str = "",
    ) -> SessionTurn:
        """`tool`: the answer calls it."""
        self.num_asked += 1
        turn = SessionTurn(name, label, tool)
        self.group: SequenceGroup = submit(
            self.scheduler, prompt, answer, program=self.num_asked, client=client, turn=turn
        )
        return turn

    def ask(
        self, prompt: list[int], answer: int = 4, *, client: str = "", **hints: str
    ) -> SessionTurn:
        """A whole request; its answer is the same token again and again."""
        turn = self.begin(prompt, answer, client=client, **hints)
        while not self.scheduler.idle:
            plan = self.scheduler.plan()
            self.now += 0.01 + 0.0001 * plan.num_tokens
            for one in commit(self.scheduler, plan):
                if one.ended:
                    node = self.scheduler.end(one.sequence)
                    assert one.sequence.group.turn is not None
                    assert node is not None
                    self.scheduler.pause(one.sequence.group.turn, node)
                    self.scheduler.unpin(node)
        self.scheduler.check()
        return turn

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.scheduler.plan()


def test_a_prompt_behind_an_earlier_answer_belongs_to_the_same_program() -> None:
    machine, prompt = Machine(), text(100)
    first = machine.ask(prompt)
    second = machine.ask([*prompt, *[TOKEN] * 4, *text(30)])
    other = machine.ask(text(100))
    assert (first.number, second.number, other.number) == (1, 1, 3)
    assert machine.scheduler.tree.num_pinned, "a session that was seen is expected back"


def test_a_harness_may_leave_answers_out_or_ask_anew_at_the_end() -> None:
    machine, prompt = Machine(), text(400)
    machine.ask([*prompt, *text(20)])
    assert machine.ask([*prompt, *text(20)]).number == 1
    assert machine.ask([*prompt, *text(60)]).number == 1
    machine.ask(prompt[:300])
    assert machine.ask([*prompt[:100], *text(300)]).number == 5, "most of it is another text"


def test_a_common_beginning_makes_no_session() -> None:
    machine, common = Machine(), text(200)
    turns = [machine.ask([*common, *text(150)]) for _ in range(5)]
    assert [turn.number for turn in turns] == [1, 2, 3, 4, 5]
    assert machine.scheduler.tree.num_pinned == 0, "nothing says that one of them comes back"


def test_the_same_prompt_again_is_no_next_turn() -> None:
    machine, prompt = Machine(), text(100)
    assert [machine.ask(prompt).number for _ in range(3)] == [1, 2, 3]


def test_a_session_is_known_by_its_prompt_when_the_tree_has_lost_it() -> None:
    machine, prompt = Machine(), text(100)
    machine.ask(prompt)
    machine.scheduler.tree.clear()
    assert machine.ask([*prompt, *text(5)]).number == 1


def test_agents_of_a_named_session_that_take_turns_are_branches_of_one_program() -> None:
    machine, agents = Machine(), [text(300) for _ in range(3)]
    order = (0, 0, 1, 0, 1, 2, 1, 2, 0)
    turns = [machine.ask([*agents[n], *text(10)], name="work") for n in order]
    assert {turn.number for turn in turns} == {1}


def test_a_name_that_no_text_confirms_makes_no_request_older() -> None:
    machine = Machine()
    turns = [machine.ask(text(100), name="mine") for _ in range(4)]
    assert [turn.number for turn in turns] == [1, 2, 3, 4]


def test_clients_share_neither_names_nor_texts_nor_what_is_learned() -> None:
    machine, prompt = Machine(), text(100)
    machine.ask(prompt, client="honest", name="work", label="key")
    longer = [*prompt, *[TOKEN] * 4, *text(10)]
    assert machine.ask(longer, client="liar", name="work", label="key").number == 2
    assert machine.ask(longer, client="honest", name="work", label="key").number == 1
    kinds = machine.scheduler.sessions.kinds
    assert {kind.client for kind in kinds} == {"honest", "liar"}


def test_a_text_of_another_client_makes_no_session() -> None:
    machine, prompt = Machine(), text(100)
    machine.ask(prompt, client="one")
    longer = [*prompt, *[TOKEN] * 4, *text(10)]
    assert machine.ask(longer, client="other").number == 2
    assert machine.ask([*longer, *text(10)], client="one").number == 1


def sessions_of_two_turns(machine: Machine, count: int, client: str = "", **hints: str) -> None:
    for _ in range(count):
        prompt = text(200)
        machine.ask(prompt, client=client, **hints)
        machine.ask([*prompt, *text(10)], client=client, **hints)


def test_a_client_keeps_its_share_of_memory_while_others_are_there() -> None:
    machine = Machine()
    sessions_of_two_turns(machine, 12, "alone")
    size, half = machine.scheduler.config.page_size, 4096 // 2
    assert machine.scheduler.tree.num_pinned * size > half, "nobody else is there"
    machine.wait(3600.0)
    machine.ask(text(20), client="other")
    sessions_of_two_turns(machine, 12, "alone")
    assert 1000 < machine.scheduler.tree.num_pinned * size <= half + 210
    machine.wait(61.0)
    sessions_of_two_turns(machine, 12, "alone")
    assert machine.scheduler.tree.num_pinned * size > half + 210, "the other one has left"


def test_a_name_that_was_confirmed_once_makes_few_requests_older() -> None:
    machine = Machine()
    sessions_of_two_turns(machine, 1, name="mine")
    for _ in range(6):
        machine.scheduler.tree.clear()
        machine.ask(text(100), name="mine")
    numbers = [machine.ask(text(100), name="mine").number for _ in range(3)]
    assert 1 not in numbers


def test_those_that_never_come_back_are_kept_for_shorter_times() -> None:
    machine = Machine()
    sessions_of_two_turns(machine, 1)
    (place,) = machine.scheduler.programs.paused[""].values()
    chances = [place.returns(seconds) for seconds in (0.0, 1.0, 30.0, 3600.0)]
    assert chances == sorted(chances, reverse=True)
    assert chances[1] > 0.5 > chances[2] > chances[3]
    machine.wait(30.0)
    tree = machine.scheduler.tree
    assert tree.num_pinned
    sessions_of_two_turns(machine, 1)
    dropped = machine.scheduler.pins.drop_for(tree.num_evictable - tree.num_pinned + 1)
    assert dropped == [1], "it is late: what it stands on goes first, though it is the older one"
    machine.wait(3600.0)
    for _ in range(12):
        sessions_of_two_turns(machine, 1)
        machine.wait(3600.0)
    sessions_of_two_turns(machine, 1)
    machine.wait(30.0)
    assert machine.scheduler.tree.num_pinned == 0


def test_those_that_come_back_late_are_kept_for_longer_times() -> None:
    machine, prompt = Machine(), text(100)
    for _ in range(12):
        machine.ask(prompt)
        prompt = prompt + text(10)
        machine.wait(150.0)
    assert machine.scheduler.tree.num_pinned


def found_by_the_honest(lie: bool) -> int:
    """Tokens that sessions of one client find beside a flood of another one's requests, which are
    said to be sessions."""
    machine, found = Machine(), 0
    prompts = [text(200) for _ in range(4)]
    for number in range(24):
        prompt = prompts[number % 4]
        machine.ask(prompt, client="honest")
        found += machine.group.cached
        prompts[number % 4] = prompt + [TOKEN] * 4 + text(20)
        for many in range(3):
            name = ("", "", "") if not lie else ("old", f"{number} {many}", f"{number % 4}")
            machine.ask(text(400), client="other", name=name[many])
    return found


def test_a_client_that_lies_takes_nothing_from_others() -> None:
    assert found_by_the_honest(lie=True) >= found_by_the_honest(lie=False) > 0


def test_labels_keep_sessions_apart() -> None:
    machine, prompt = Machine(), text(100)
    machine.ask(prompt, label="one")
    assert machine.ask([*prompt, *text(9)], label="two").number == 2


def test_what_is_hardly_expected_back_keeps_nothing() -> None:
    machine, prompt = Machine(), text(100)
    machine.ask(prompt)
    machine.ask([*prompt, *text(9)])
    assert machine.scheduler.tree.num_pinned
    machine.wait(3600.0)
    assert machine.scheduler.tree.num_pinned == 0
    assert len(machine.scheduler.programs) == 0


def test_a_pause_is_not_over_while_the_next_turn_is_under_way() -> None:
    machine, prompt = Machine(), text(100)
    machine.ask(prompt)
    machine.ask([*prompt, *text(9)])
    turn = machine.begin([*prompt, *text(19)])
    machine.scheduler.sessions.tick(machine.now + 3600.0)
    assert machine.scheduler.tree.num_pinned
    (sequence,) = machine.group.sequences
    assert machine.scheduler.end(sequence) is None
    machine.scheduler.pause(turn, None)
    machine.wait(3600.0)
    assert machine.scheduler.tree.num_pinned == 0, "cancelled: it is waited for again, but not long"


def test_pauses_are_learned_also_from_those_that_never_end() -> None:
    times = PauseTimes([0.0] * NUM_AGES)
    assert times.expected.limit == 0.0
    for _ in range(40):
        times.saw(0, age_of(1.0), ended=True)
    expected = times.expected
    assert 0.8 < expected.seconds < 1.5
    assert 1.0 <= expected.late <= expected.limit < 2.0
    for _ in range(4000):
        times.saw(0, age_of(60.0), ended=False)
    assert times.expected.limit == 0.0, "nearly all stay away now"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_PAUSES", 8)
    monkeypatch.setattr(sessions, "MOST_KINDS", 3)
    machine = Machine()
    for number in range(24):
        machine.ask(text(20), client=str(number), name=str(number))
    assert machine.scheduler.sessions.num_pauses == 8
    assert len(machine.scheduler.sessions.kinds) == 3


def test_a_client_of_many_requests_makes_nobody_elses_session_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "MOST_PAUSES", 8)
    machine, prompt = Machine(), text(100)
    first = machine.ask(prompt, client="one")
    for _ in range(20):
        machine.ask(text(20), client="many")
    assert machine.scheduler.sessions.num_pauses == 8
    assert machine.ask([*prompt, *text(10)], client="one").number == first.number


def test_a_client_of_many_tools_makes_nothing_forgotten_that_was_learned_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "MOST_KINDS", 8)
    machine = Machine()
    machine.ask(text(20), client="one", tool="make")
    for number in range(20):
        machine.ask(text(20), client="many", tool=f"tool-{number}")
    machine.ask(text(20), client="two", tool="make")
    kinds = machine.scheduler.sessions.kinds
    assert [kind.tool for kind in kinds if kind.client != "many"] == ["make", "make"]
    tools = [kind.tool for kind in kinds if kind.client == "many"]
    assert tools == [f"tool-{number}" for number in range(14, 20)], "its own oldest are forgotten"


def test_pauses_are_told_apart_by_the_tool_that_an_answer_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    welcome = wire.Welcome(wire.PROTOCOL_VERSION, "fake", 200, 9, 4, 64, 1)
    model = ServedModel(LetterTokenizer(), lambda: ChatTemplate("", {}), welcome)
    call = '<tool_call>\n{"name": "%s", "arguments": {}}\n</tool_call>'
    assert model.called_tool("Let me see. " + call % "list" + call % "read.file") == "read.file"
    assert model.called_tool('"name": "list"') == ""
    monkeypatch.setattr(ServedModel, "called_tool", lambda self, text: "list")
    talk = Talk()
    talk.say(Open(1, turn=""), Append(1, (TextPiece("x" * 30),)), Generate(1, 1, GREEDY), Close(1))
    talk.until_idle()
    talk.say(Open(2, turn=""), Append(2, (TextPiece("x" * 30),)), Generate(2, 2, GREEDY))
    talk.until_idle()
    talk.say(Close(2))
    talk.until_idle()
    (kind,) = talk.scheduler.sessions.kinds
    assert (kind.tool, kind.turn) == ("list", 1)


def test_a_turn_that_never_fits_is_refused_and_leaves_its_session_as_it_was() -> None:
    talk = Talk(num_pages=16)
    size = talk.scheduler.config.page_size
    ends = []
    for number, length in ((1, 20), (2, 20 * size), (3, 30)):
        talk.say(Open(number, session="a", turn=""), Append(number, (TextPiece("x" * length),)))
        talk.say(Generate(number, number, GREEDY))
        ends += talk.until_idle()
        talk.say(Close(number))
        talk.until_idle()
    assert [type(one) for one in ends] == [wire.CallDone, wire.Failed, wire.CallDone]
    assert ends[1].code == "context_overflow"
    assert talk.scheduler.sessions.numbers == {1}
    talk.scheduler.check()


def test_a_request_of_a_harness_leaves_its_pin_to_the_next_one() -> None:
    talk = Talk(num_pages=64)
    for number in range(1, 4):
        asked = TextPiece("x" * (20 + 10 * number))
        talk.say(Open(number, session="a", turn=""), Append(number, (asked,)))
        talk.say(Generate(number, number, GREEDY))
        assert [type(reply) for reply in talk.until_idle()] == [wire.CallDone]
        talk.say(Close(number))
        talk.until_idle()
    assert talk.scheduler.tree.num_pinned
    assert talk.scheduler.sessions.numbers == {1}
    talk.scheduler.check()
