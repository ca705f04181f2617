"""The OpenAPI document and its page: every route is there, every reference leads somewhere, nothing
is fetched.
"""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser
from typing import Any

import jsonschema

from lmprog.server.http.limits import LIMITS
from tests.server.fake_runtime import Fake, asking
from tests.server.live import Live


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*(references(one) for one in value.values()))
    return set().union(*(references(one) for one in value)) if isinstance(value, list) else set()


def test_every_route_that_is_written_down_exists_and_answers_are_described(live: Live) -> None:
    made = live.http.get("/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/responses/{response}", "/generate"} <= set(made["paths"])
    for path, methods in made["paths"].items():
        for one in methods.values():
            assert one["summary"], path
            assert set(one["responses"]) == {"200", "default"}
    names = [one["operationId"] for methods in made["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))


def test_every_reference_leads_somewhere_and_schemas_are_valid(live: Live) -> None:
    made = live.http.get("/openapi.json").json()
    schemas = made["components"]["schemas"]
    assert references(made) == {f"#/components/schemas/{name}" for name in schemas}
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    assert not any("lmprog" in name for name in schemas)


def test_the_table_of_limits_stands_in_the_document(live: Live) -> None:
    chat = live.http.get("/openapi.json").json()["components"]["schemas"]["ChatBody"]["properties"]
    ranges = {(one.get("minimum"), one.get("maximum")) for one in chat["temperature"]["anyOf"]}
    limit = LIMITS["temperature"]
    assert (limit.minimum, limit.maximum) in ranges


def test_the_document_says_which_routes_need_a_key(fake: Fake) -> None:
    async def run() -> Any:
        async with asking(fake, api_keys=("one",)) as (client, _):
            return (await client.get("/openapi.json", headers={"x-api-key": "one"})).json()

    made = asyncio.run(run())
    paths = {path for path, of in made["paths"].items() for one in of.values() if "security" in one}
    assert set(made["paths"]) - paths == {"/health", "/ready"}
    assert made["paths"]["/v1/models/{model}"]["get"]["security"] == [{"key": []}]
    assert made["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}


class Links(HTMLParser):
    """What a page would fetch or run, and where it leads."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.targets: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attributes:
            assert name not in ("src", "onclick"), (tag, name)
            if name == "href":
                self.targets.append(value or "")
            if name == "id":
                self.ids.add(value or "")


def test_the_page_fetches_nothing_and_its_links_lead_somewhere(live: Live) -> None:
    response = live.http.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    found = Links()
    found.feed(response.text)
    assert not found.tags & {"script", "link", "img", "iframe", "form"}
    assert {target[1:] for target in found.targets if target.startswith("#")} <= found.ids
    assert {target for target in found.targets if not target.startswith("#")} == {"openapi.json"}
    assert re.search(r"/v1/programs", response.text)
