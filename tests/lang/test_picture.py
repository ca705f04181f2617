"""The picture of a trace: everything is in it once, nothing overlaps, time runs downwards, no text
becomes markup.
"""

from __future__ import annotations

import random
import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

import lmprog
from lmprog import wire
from lmprog.lang.rehearsal.graph import Box, Graph, boxes_of, drawing_of

SVG = "{http://www.w3.org/2000/svg}"


@lmprog.function
def tips(s: lmprog.Branch, topic: str) -> None:
    s += f"Two tips about {topic}: " + lmprog.gen("list", max_tokens=16)
    forks = s.fork(3)
    forks += lambda i: f"Tip {i + 1}: " + lmprog.gen("short", max_tokens=8)
    forks.join()
    s += f" In short: {s['short'][0]}. "
    s += lmprog.select("kind", ["good", "bad"])


@lmprog.function
def busy(s: lmprog.Branch) -> None:
    s += "a"
    forks = s.fork(2)
    s += "b" + lmprog.gen("beside")
    forks += lmprog.gen("x")
    forks.join()


def _boxes(graph: Graph) -> list[Box]:
    return boxes_of(drawing_of(graph))


def _apart(a: Box, b: Box) -> bool:
    beside = abs(a.x - b.x) >= (a.width + b.width) / 2
    return beside or a.y + a.height <= b.y or b.y + b.height <= a.y


def _check(graph: Graph) -> None:
    boxes, drawing = _boxes(graph), drawing_of(graph)
    assert all(_apart(a, b) for a, b in combinations(boxes, 2))
    for edge in drawing.edges:
        source, target = boxes[edge.source], boxes[edge.target]
        assert source.y + source.height < target.y, "what comes after stands below"
    picture = ElementTree.fromstring(graph.to_svg())
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    assert len(picture.findall(f"{SVG}g")) == len(boxes)
    for box in boxes:
        assert box.x - box.width / 2 >= 0
        assert box.x + box.width / 2 <= width
        assert 0 <= box.y <= box.y + box.height <= height
    for text in picture.iter(f"{SVG}text"):
        assert len(text.text or "") <= 120


def test_children_stand_side_by_side_under_their_parent() -> None:
    graph = tips.trace("health")
    _check(graph)
    boxes = _boxes(graph)
    fork = next(box for box in boxes if box.words.kind == "fork")
    children = [box for box in boxes if box.words.head.startswith("short")]
    assert len({box.y for box in children}) == 1
    assert [box.x for box in children] == sorted(box.x for box in children)
    assert children[1].x == fork.x, "a parent that waits stands over the middle"


def test_a_parent_that_goes_on_has_a_column_of_its_own() -> None:
    graph = busy.trace()
    _check(graph)
    boxes = _boxes(graph)
    beside = next(box for box in boxes if box.words.head == "beside")
    assert beside.x not in {box.x for box in boxes if box.words.head.startswith("x")}


def _random_ops(rng: random.Random, s: lmprog.Branch, depth: int = 0) -> None:
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(
            ["text", "gen", "select", "fork", "copy"] if depth < 3 else ["text", "gen"]
        )
        if kind == "text":
            s.append("some words " * rng.randint(1, 20))
        elif kind == "gen":
            s.gen(max_tokens=3)
        elif kind == "select":
            s.select("a", "b" * rng.randint(1, 60))
        elif kind == "copy":
            with s.copy() as other:
                _random_ops(rng, other, depth + 1)
        else:
            forks = s.fork(rng.randint(1, 3))
            for fork in forks:
                _random_ops(rng, fork, depth + 1)
                if rng.random() < 0.2:
                    s.gen(max_tokens=2)
            if rng.random() < 0.7:
                forks.join(rng.choice(["gather_variable", "concate_and_append"]))


@pytest.mark.parametrize("seed", range(60))
def test_pictures_of_random_programs_are_in_order(seed: int) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        _random_ops(random.Random(seed), s)

    _check(program.trace())


def test_no_text_becomes_markup_and_what_xml_cannot_say_is_replaced() -> None:
    @lmprog.function
    def hostile(s: lmprog.Branch) -> None:
        s += "</text><script>alert(1)</script>\x00\x1b]]>&"
        s += lmprog.gen("<b onload='x'>\"")
        s += lmprog.select("&", ["<i>", "--><svg onload=alert(1)>"])

    graph = hostile.trace()
    picture = graph.to_svg()
    assert graph._repr_svg_() == picture
    found = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(picture).iter()}
    assert found <= {"svg", "defs", "marker", "path", "rect", "text", "g", "title"}
    assert "<script" not in picture
    assert not re.search(r"<\w+[^>]* on\w+=", picture)
    assert "href" not in picture, "nothing outside of the picture is loaded"
    picture.encode()


def test_a_program_that_does_nothing_has_a_picture() -> None:
    @lmprog.function
    def nothing(s: lmprog.Branch) -> None:
        pass

    assert "nothing: 0 calls" in nothing.trace().to_svg()


def test_every_call_and_fork_is_in_the_picture() -> None:
    graph = tips.trace("health")
    texts = [text.text for text in ElementTree.fromstring(graph.to_svg()).iter(f"{SVG}text")]
    assert {planned.label for planned in graph.calls.values()} <= set(texts)
    assert texts.count("fork 3") == sum(isinstance(op, wire.Fork) for op in graph.ops)
    assert texts.count("join 3") == 1
