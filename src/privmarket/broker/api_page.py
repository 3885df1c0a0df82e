"""The API's description at /docs: one page made from the OpenAPI document, without scripts from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any


def reference_page(openapi: dict[str, Any]) -> str:
    """HTML with every route, what it does, what it takes, and the forms."""
    routes = "".join(
        _route(method, path, operation)
        for path, verbs in openapi["paths"].items()
        for method, operation in verbs.items()
    )
    forms = "".join(_form(name, schema) for name, schema in openapi["components"]["schemas"].items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>privmarket API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="/static/broker.css"></head><body><main><h1>privmarket API</h1>'
        "<p>Send <code>Authorization: Bearer TOKEN</code>, and a fresh <code>Idempotency-Key</code> with every "
        'write. Errors are <code>{"code", "message", "hint"}</code>. Machine-readable: '
        '<a href="/openapi.json">openapi.json</a>.</p>'
        f"{routes}<h2>Forms</h2>{forms}</main></body></html>"
    )


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    form = str(body.get("$ref", "")).rpartition("/")[2]
    query = [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
    takes = [f'form <a href="#{escape(form)}">{escape(form)}</a>'] if form else []
    takes += [f"query {escape(', '.join(query))}"] if query else []
    about = escape(operation.get("description", ""))
    return (
        f"<section><h3><code>{method.upper()} {escape(path)}</code></h3><p>{about}"
        f"{' Takes ' + ' and '.join(takes) + '.' if takes else ''}</p></section>"
    )


def _form(name: str, schema: dict[str, Any]) -> str:
    fields = escape(json.dumps(schema.get("properties", {}), indent=2, ensure_ascii=False))
    about = escape(schema.get("description", ""))
    return f'<section id="{escape(name)}"><h3>{escape(name)}</h3><p>{about}</p><pre>{fields}</pre></section>'
