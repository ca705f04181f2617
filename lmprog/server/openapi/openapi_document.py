"""The OpenAPI document, made from the routes, the structs of their bodies and the table of limits
in these structs.

Knows routes and structs; answers nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from lmprog.server.http.auth import AdminRoute, OpenRoute
from lmprog.server.openapi.operations import OPERATIONS, Operation
from lmprog.server.operations.health import version

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_ERROR: Json = {
    "title": "Error",
    "description": "Every answer that is not 2xx.",
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The field that is wrong."},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def document(routes: Iterable[BaseRoute], needs_key: bool) -> Json:
    """All routes that are plain HTTP; those of the page's own files are left out."""
    known = sorted(_listed(routes), key=lambda one: one[0])
    structs = {
        kind for path, _ in known for kind in _structs(OPERATIONS.get(path)) if kind is not None
    }
    ordered = sorted(structs, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
    refs, schemas = msgspec.json.schema_components(ordered, ref_template=_REF)
    made: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "lmprog",
            "version": version(),
            "description": "A runtime for programs with language models.",
        },
        "paths": _paths(known, dict(zip(ordered, refs, strict=True)), needs_key),
        "components": {"schemas": {**schemas, "Error": _ERROR}},
    }
    if needs_key:
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return _short_names(made)


def _listed(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, Route]]:
    for route in routes:
        if isinstance(route, Route) and not route.path.startswith("/ui"):
            yield re.sub(r":\w+}", "}", route.path), route


def _structs(operation: Operation | None) -> tuple[type[msgspec.Struct] | None, ...]:
    return () if operation is None else (operation.body, operation.answer)


def _paths(
    known: list[tuple[str, Route]], refs: dict[type[msgspec.Struct], Json], needs_key: bool
) -> Json:
    paths: Json = {}
    for path, route in known:
        operation = OPERATIONS.get(path, Operation(path))
        for method in sorted((route.methods or set()) - {"HEAD"}):
            one = _operation(operation, path, refs, method)
            if needs_key and not isinstance(route, OpenRoute):
                one["security"] = [{"key": []}]
            if isinstance(route, AdminRoute):
                one["description"] = "For the administrator's key."
            paths.setdefault(path, {})[method.lower()] = one
    return paths


def _operation(
    operation: Operation, path: str, refs: dict[type[msgspec.Struct], Json], method: str
) -> Json:
    shape = {"type": "object"} if operation.answer is None else refs[operation.answer]
    content: Json = {}
    if operation.media:
        content[operation.media] = (
            {"schema": shape} if operation.media == "application/json" else {}
        )
    if operation.streams:
        content["text/event-stream"] = {}
    problem = {
        "description": "It was refused, or it failed.",
        "content": {"application/json": {"schema": _error()}},
    }
    made: Json = {
        "operationId": f"{method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', path)}",
        "summary": operation.summary,
        "responses": {"200": {"description": "Done.", "content": content}, "default": problem},
    }
    names = re.findall(r"{(\w+)}", path)
    if names:
        made["parameters"] = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1},
            }
            for name in names
        ]
    if operation.body is not None and method in ("POST", "PUT"):
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": refs[operation.body]}},
        }
    return made


def _error() -> Json:
    return {"$ref": _REF.format(name="Error")}


def _short_names(made: Json) -> Json:
    """Structs of one name have their module's whole path before it; its last part is enough."""
    text = msgspec.json.encode(made).decode()
    return msgspec.json.decode(re.sub(r"lmprog(?:\.\w+)*\.(\w+\.\w+)\"", r'\1"', text), type=Json)
