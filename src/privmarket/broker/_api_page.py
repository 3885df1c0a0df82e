"""The API's description at /docs: one page made from the OpenAPI document, without scripts from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

_INTRODUCTION = """
<p>Send <code>Authorization: Bearer TOKEN</code>, and a fresh <code>Idempotency-Key</code> with every write: the
same request under the same key acts once. Machine-readable: <a href="/openapi.json">openapi.json</a>.</p>
<p>Every error is <code>{"code", "message", "hint", "field", "request_id"}</code>; <code>field</code> names what was
wrong, and <code>request_id</code> is also in the header <code>X-Request-Id</code>, which you may set. Answers to a
token carry <code>RateLimit-Limit</code>, <code>-Remaining</code> and <code>-Reset</code>; 429 and 503 carry
<code>Retry-After</code>. Send <code>Privmarket-Version: 1</code> to be refused, rather than surprised, by a broker
that speaks another version.</p> <p>Lists come in pages: send <code>next</code> of one as <code>after</code> of the
following. What happens can be followed with <code>GET /v1/events</code>, or as server-sent events at
<code>/v1/events/stream</code>.</p>
"""


def reference_page(openapi: dict[str, Any]) -> str:
    """HTML with every route, what it does, takes and answers, and all forms and answers field by field."""
    operations = [
        (method, path, operation) for path, verbs in openapi["paths"].items() for method, operation in verbs.items()
    ]
    contents = "".join(
        f'<li><a href="#{escape(one["operationId"])}"><code>{method.upper()} {escape(path)}</code></a></li>'
        for method, path, one in operations
    )
    routes = "".join(_route(method, path, operation) for method, path, operation in operations)
    schemas = "".join(_schema(name, schema) for name, schema in openapi["components"]["schemas"].items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>privmarket API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="/static/broker.css"></head><body><main><h1>privmarket API</h1>'
        f"{_INTRODUCTION}<details><summary>All routes</summary><ul>{contents}</ul></details>"
        f'{routes}<hr><p class="lead">Forms and answers</p>{schemas}</main></body></html>'
    )


def _link(schema: dict[str, Any]) -> str:
    """A type in words, with a link where it is described below."""
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(_link(one) for one in schema[choice])
    if schema.get("type") == "array":
        return f"list of {_link(schema.get('items', {}))}"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    return escape(str(schema.get("type", "anything")))


def _limits(schema: dict[str, Any]) -> str:
    """The limits of a value, in words."""
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
        "minLength": "characters, at least",
        "maxLength": "characters, at most",
        "pattern": "pattern",
    }
    places = [schema, *schema.get("anyOf", [])]
    found = [schema["description"]] if "description" in schema else []
    found += [f"{text} {_number(one[name])}" for name, text in words.items() for one in places if name in one]
    if schema.get("default") is not None:
        found.append(f"default {json.dumps(schema['default'])}")
    return escape("; ".join(found))


def _number(value: object) -> str:
    """A limit in ordinary notation."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _rows(of: str, fields: list[tuple[str, dict[str, Any], bool]]) -> str:
    lines = "".join(
        f"<tr><td><code>{escape(name)}</code>{'' if required else ' <span class=soft>optional</span>'}</td>"
        f'<td>{_link(schema)}</td><td class="wrap">{_limits(schema)}</td></tr>'
        for name, schema, required in fields
    )
    table = f'<table class="tight stack">{lines}</table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(of)}">{table}</div>'


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = [
        (f"{one['name']} ({one['in']})", one["schema"], bool(one.get("required")))
        for one in operation.get("parameters", [])
        if one["name"] != "authorization"
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    takes = "" if body is None else f"<p>Takes {_link(body)}.</p>"
    status, answer = next((status, one) for status, one in operation["responses"].items() if status.startswith("2"))
    content: dict[str, Any] = next(iter(answer.get("content", {}).values()), {})
    gives = f"<p>Answers {status}: {_link(content.get('schema', {}))}.</p>"
    name = escape(operation["operationId"])
    about = "".join(f"<p>{escape(part)}</p>" for part in operation.get("description", "").split("\n\n"))
    title = f'<code>{method.upper()} {escape(path)}</code> <span class="soft">{name}</span>'
    table = _rows(f"Parameters of {name}", parameters) if parameters else ""
    return f'<section class="panel" id="{name}"><h2>{title}</h2>{about}{table}{takes}{gives}</section>'


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    fields = [(one, of, one in required) for one, of in schema.get("properties", {}).items()]
    examples = "".join(
        f"<pre>{escape(json.dumps(one, indent=2, ensure_ascii=False))}</pre>" for one in schema.get("examples", [])
    )
    about = "".join(f"<p>{escape(part)}</p>" for part in schema.get("description", "").split("\n\n"))
    return (
        f'<section class="panel" id="{escape(name)}"><h2>{escape(name)}</h2>{about}'
        f"{_rows('Fields of ' + name, fields) if fields else ''}{examples}</section>"
    )
