"""The REST reference, made from the OpenAPI document that the server itself gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_eaco.provider.api.app import API

_HEAD = f"""\
# REST

<!-- Made by `python -m airflow_provider_eaco.provider.reference rest`; change the routes. -->

Every route stands under `/eaco{API}` of Airflow's API server and takes the token or cookie of Airflow's own
API; `/eaco{API}/openapi.json` is the document from which this page is made. Who may do what, and how to call
it, is in [the page](../guides/page.md#rest). Unknown is `null`. Instants are seconds since the Unix epoch.
An error is an [ErrorAnswer](#erroranswer).

## Routes
"""
# FastAPI's own, which are never sent: what is wrong with a request is told in an ErrorAnswer.
_UNUSED = {"HTTPValidationError", "ValidationError"}


def rest_reference(schema: Mapping[str, Any]) -> str:
    """Return the document: one section per route, then one per object that is sent or answered."""
    routes = (
        _route(method, path, operation)
        for path, item in schema["paths"].items()
        for method, operation in item.items()
    )
    objects = (
        _object(name, each) for name, each in schema["components"]["schemas"].items() if name not in _UNUSED
    )
    return _HEAD + "".join(routes) + "\n## Objects\n" + "".join(objects)


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [f"\n### {method.upper()} {path.removeprefix(API)}\n", f"\n{_text(operation['description'])}\n"]
    if parameters := operation.get("parameters"):
        parts += ["\n| parameter | in | type | default |\n| --- | --- | --- | --- |\n"]
        parts += [_parameter(each) for each in parameters]
    if body := operation.get("requestBody"):
        parts.append(f"\nTakes {_content(body['content'])}. ")
    success = next(answer for code, answer in operation["responses"].items() if code.startswith("2"))
    content = _content(success.get("content", {}))
    parts.append(f"\nAnswers {content or 'with 204 and nothing'}.\n")
    return "".join(parts)


def _parameter(each: Mapping[str, Any]) -> str:
    schema = each["schema"]
    default = f"`{schema['default']}`" if schema.get("default") is not None else ""
    needed = "**required**" if each.get("required") and each["in"] == "query" else default
    return f"| `{each['name']}` | {each['in']} | {_type(schema)}{_bounds(schema)} | {needed} |\n"


def _bounds(schema: Mapping[str, Any]) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum")
    if low is None and high is None:
        return ""
    above = "above " if "exclusiveMinimum" in schema else ""
    return f", {above}{low if low is not None else '…'} to {high if high is not None else '…'}"


def _content(content: Mapping[str, Any]) -> str:
    """Return what is sent, as one phrase: the object, or the kinds of file where there is none."""
    kinds = [_type(each["schema"]) for each in content.values() if each.get("schema")]
    return " or ".join(kinds or [f"a file (`{kind}`)" for kind in content])


def _object(name: str, schema: Mapping[str, Any]) -> str:
    described = f"\n{_text(schema['description'])}\n" if schema.get("description") else ""
    rows = [
        f"| `{field}` | {_type(each)} | {_text(each.get('description', ''))} |\n"
        for field, each in schema.get("properties", {}).items()
    ]
    table = "\n| field | type | meaning |\n| --- | --- | --- |\n" + "".join(rows)
    return f"\n### {_shown(name)}\n{described}{table}"


def _type(schema: Mapping[str, Any]) -> str:
    return " or ".join(_types(schema))


def _types(schema: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        name = _shown(schema["$ref"].rpartition("/")[2])
        yield f"[{name}](#{name.lower().replace(' ', '-')})"
    elif "anyOf" in schema:
        yield from (each for part in schema["anyOf"] for each in _types(part))
    elif "enum" in schema:
        yield ", ".join(f"`{value}`" for value in schema["enum"])
    elif schema.get("type") == "array":
        yield f"list of {_type(schema.get('items', {}))}"
    elif isinstance(schema.get("additionalProperties"), Mapping):
        yield f"object of {_type(schema['additionalProperties'])}"
    else:
        yield {"null": "`null`"}.get(schema.get("type", ""), schema.get("type", "any"))


def _shown(name: str) -> str:
    """Return a name as a heading: ``Page_Waiting_`` is FastAPI's for a page of ``Waiting``."""
    return f"Page of {name[5:-1]}" if name.startswith("Page_") and name.endswith("_") else name


def _text(description: str) -> str:
    return " ".join(description.replace("``", "`").replace("|", "\\|").split())
