"""The OpenAPI description as a page that needs no script and no network."""

from __future__ import annotations

import json
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; font-size: 1.1rem; overflow-wrap: anywhere }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
pre { padding: .8rem; overflow-x: auto; border: 1px solid #8886; border-radius: 6px }
.method { border: 1px solid; border-radius: 4px; padding: 0 .4em; margin-right: .5em }
td, th { text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0 }
"""


def api_page(description: dict[str, Any]) -> str:
    """HTML: every path with its method, its body, its answer and its errors."""
    info, schemas = description["info"], description.get("components", {}).get("schemas", {})
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])} API"
        '</title><meta name=viewport content="width=device-width, initial-scale=1">'
        f"<link rel=icon href='data:,'><style>{STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info['description'])} The same for programs: "
        "<a href=openapi.json>openapi.json</a>. <a href=./>The model's page</a>.</p>"
    ]
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            parts.append(_route(path, method, route, schemas))
    return "".join(parts)


def _route(path: str, method: str, route: dict[str, Any], schemas: dict[str, Any]) -> str:
    text = (
        f"<h2><span class=method>{escape(method.upper())}</span><code>{escape(path)}</code></h2>"
        f"<p>{escape(route.get('summary', ''))}.</p>"
    )
    body = _schema(route.get("requestBody", {}), schemas)
    if body:
        text += f"<p>{escape(body.get('description', ''))}</p>{_fields(body, schemas)}"
    for status, answer in route.get("responses", {}).items():
        schema = _schema(answer, schemas) if status.startswith("2") else {}
        if schema:
            shown = json.dumps(_outline(schema, schemas), indent=1, ensure_ascii=False)
            text += f"<p>The answer:</p><pre>{escape(shown)}</pre>"
    errors = [
        f"<tr><td>{escape(status)}<td>{escape(answer['description'])}"
        for status, answer in route.get("responses", {}).items()
        if not status.startswith("2")
    ]
    return text + (f"<table>{''.join(errors)}</table>" if errors else "")


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    needed = schema.get("required", [])
    rows = []
    fields = schema.get("properties", {}).items()
    for name, inner in sorted(fields, key=lambda field: field[0] not in needed):
        default = inner.get("default")
        left_out = "none" if default is None else json.dumps(default)
        left_out = "" if name in needed else f"; left out: {left_out}"
        kind = json.dumps(_outline(inner, schemas), ensure_ascii=False)
        rows.append(
            f"<tr><td><code>{escape(name)}</code><td><code>{escape(kind)}</code>"
            f"<td>{escape(inner.get('description', '').rstrip('.') + left_out)}"
        )
    return f"<table>{''.join(rows)}</table>"


def _schema(holder: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema of a body or an answer in JSON; empty if it has none."""
    found = holder.get("content", {}).get("application/json", {}).get("schema", {})
    return _resolved(found, schemas)


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        found: dict[str, Any] = schemas[schema["$ref"].rsplit("/", 1)[1]]
        return found
    return schema


def _outline(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """A value of this schema, with types in the place of values."""
    schema = _resolved(schema, schemas)
    if "anyOf" in schema:
        return _outline(schema["anyOf"][0], schemas)
    if schema.get("examples"):
        return schema["examples"][0]
    if "properties" in schema:
        return {name: _outline(inner, schemas) for name, inner in schema["properties"].items()}
    if schema.get("type") == "array":
        return [_outline(schema.get("items", {}), schemas)]
    if schema.get("type") == "object":
        return {"…": _outline(schema.get("additionalProperties", {}), schemas)}
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else kind
