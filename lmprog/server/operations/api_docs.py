"""`/openapi.json` and `/docs`: FastAPI's document of the routes, and the same for eyes, as one page
of plain HTML without any script.

Knows the document's form; knows no routes and no structs.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from lmprog.server.gateway.gateway import Gateway
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.json_body import described

Json = dict[str, Any]

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 "
    "1rem;color-scheme:light dark}"
    "code{font:14px ui-monospace,monospace}summary{cursor:pointer;padding:.3rem 0}"
    "details{border-top:1px solid #8884}b{display:inline-block;min-width:4.5rem}"
    "table{border-collapse:collapse;margin:.5rem 0 1rem;width:100%}"
    "td,th{text-align:left;vertical-align:top;padding:.2rem .6rem;border-bottom:1px solid #8883}"
)
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action "
    "'none'; frame-ancestors 'none'"
)


def router(gateway: Gateway) -> GatewayRouter:
    made = GatewayRouter(gateway, "Operations")

    @made.get(
        "/openapi.json",
        dependencies=[made.guards.local],
        summary="This document.",
        responses=described(),
    )
    async def openapi(request: Request) -> Response:
        return JSONResponse(request.app.openapi())

    @made.get(
        "/docs",
        dependencies=[made.guards.local],
        summary="This document as a page.",
        responses=described(media="text/html"),
    )
    async def docs(request: Request) -> Response:
        document = page(request.app.openapi())
        return HTMLResponse(document, headers={"content-security-policy": _POLICY})

    return made


def page(made: Json) -> str:
    """The document as HTML."""
    return "".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8><title>lmprog: the HTTP "
            "interface</title>",
            f"<style>{_STYLE}</style><h1>lmprog {html.escape(made['info']['version'])}</h1>",
            "<p>Every route of this server. The same for programs: <a "
            "href=openapi.json>openapi.json</a>.</p>",
            *(
                _operation(path, method, one)
                for path, of in made["paths"].items()
                for method, one in of.items()
            ),
            "<h1>Shapes</h1>",
            *(
                _shape(name, schema)
                for name, schema in sorted(made["components"]["schemas"].items())
            ),
            "</html>",
        ]
    )


def _operation(path: str, method: str, one: Json) -> str:
    body = one.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    answer = one["responses"]["200"]["content"].get("application/json", {}).get("schema", {})
    lines = [f"<p>{html.escape(one.get('description', ''))}</p>" if "description" in one else ""]
    if body is not None:
        lines.append(f"<p>Takes {_type(body)}.</p>")
    if "$ref" in answer:
        lines.append(f"<p>Gives {_type(answer)}.</p>")
    if "text/event-stream" in one["responses"]["200"]["content"]:
        lines.append("<p>With <code>stream: true</code> it answers with server-sent events.</p>")
    what = html.escape(one["summary"])
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{html.escape(path)}</code> "
        f"&ensp;{what}</summary>"
        f"{''.join(lines)}</details>"
    )


def _shape(name: str, schema: Json) -> str:
    needed = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{html.escape(field)}</code>"
        f"{'' if field in needed else ' <small>optional</small>'}"
        f"<td>{_type(of)}<td>{html.escape(', '.join(_ranges(of)))}"
        for field, of in schema.get("properties", {}).items()
    )
    about = html.escape(schema.get("description", ""))
    return (
        f'<details id="{html.escape(name)}"><summary><code>{html.escape(name)}</code></summary>'
        f"<p>{about}</p>"
        f"<table><tr><th>field<th>type<th>range{rows}</table></details>"
    )


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = html.escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}"><code>{name}</code></a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return html.escape(" or ".join(json.dumps(one) for one in schema["enum"]))
    if schema.get("type") == "array" and "items" in schema:
        return f"array of {_type(schema['items'])}"
    kind = schema.get("type", "anything")
    return html.escape(" or ".join(kind) if isinstance(kind, list) else str(kind))


def _ranges(schema: Json) -> Iterator[str]:
    """The limits of a field, of whichever of its types has some."""
    for one in schema.get("anyOf", [schema]):
        if "minimum" in one or "maximum" in one:
            yield f"{_number(one.get('minimum'))} to {_number(one.get('maximum'))}"
        if "maxLength" in one:
            yield f"{one.get('minLength', 0):,} to {one['maxLength']:,} characters"
        if "maxItems" in one:
            yield f"{one.get('minItems', 0):,} to {one['maxItems']:,} items"


def _number(value: Any) -> str:
    return "any" if value is None else f"{value:,}"
