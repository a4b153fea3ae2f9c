"""The reference page of all settings, composed from the typed tree (style, 11)."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import NoDecode

from config.environment import NESTING, PREFIX, Environment, secret_files
from journal.conf import AccessToken

HEAD = """\
# Configuration

<!-- Written by `./run manage export_configuration` from config/environment.py, sections.py. -->

Everything about a deployment comes from environment variables, read once at the start. An unknown
`HEADROOM_` name or a value that is not allowed stops the start with one line that names the
variable, the problem and what is allowed. How the cloud is operated (what flavor groups do,
failover policies) is not here: it lives in rows that are edited in the admin.

Variables with a double underscore are nested: `HEADROOM_LIQUID__ENABLE_QUOTA`. A whole group may
be given as one JSON object (`HEADROOM_LIQUID='{"enable_quota": false}'`); the single variables
win. Booleans are `true` or `false`. Lists are JSON, except where "comma separated" is said.
Variables in seconds may be written as durations: `5m`, `90s`, `1h30m`, `500ms`. A variable ending
in `_FILE` names a file whose content is used instead, for secrets that are mounted. What the
settings of the reference are called here is in [settings of the reference](reference-settings.md).
"""

CONNECTIONS = (
    (
        "DATABASE_URL",
        "URL",
        "`postgresql:///headroom`",
        (
            "PostgreSQL 15 or newer: `postgresql://user:password@host:port/name`. A socket "
            "directory goes into the query, `postgresql://user@/name?host=/run/postgresql`; other "
            "parameters of the query (`sslmode`, ...) are passed to the driver. Or the name of a "
            "file with it, in `DATABASE_URL_FILE`."
        ),
    ),
    (
        "REDIS_URL",
        "URL",
        "`redis://127.0.0.1:6379/0`",
        (
            "The broker: `redis://`, `rediss://`, or `unix:///path?db=0` for a socket. Or the name "
            "of a file with it, in `REDIS_URL_FILE`."
        ),
    ),
    (
        "PROMETHEUS_MULTIPROC_DIR",
        "directory",
        "unset; `./run` sets one",
        (
            "Where the processes of one machine keep their counters, so that `/metrics` of any of "
            "them tells all; empty at the start."
        ),
    ),
)
RUNNING = """
What `./run` and granian read besides is in [running.md](running.md).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One environment variable of the reference.

    Attributes:
        name: Full name.
        type_text: Its type and bounds, for people.
        default_text: Its default, or that there is none.
        meaning: One sentence.
    """

    name: str
    type_text: str
    default_text: str
    meaning: str


def configuration_page() -> str:
    """Return the whole page as Markdown."""
    sections = [
        HEAD,
        _section("Connections", _connections()),
        RUNNING,
        _section("General", _variables(Environment, PREFIX)),
    ]
    for name, field in Environment.model_fields.items():
        model = _nested(field)
        if model is not None:
            title = f"`{PREFIX}{name.upper()}{NESTING}...`: {_first_line(model)}"
            sections.append(_section(title, _variables(model, f"{PREFIX}{name.upper()}{NESTING}")))
    sections.append(_tokens_section())
    return "".join(sections)


def _connections() -> Iterator[Variable]:
    for name, type_text, default_text, meaning in CONNECTIONS:
        yield Variable(name=name, type_text=type_text, default_text=default_text, meaning=meaning)


def _variables(model: type[BaseModel], prefix: str) -> Iterator[Variable]:
    files = secret_files()
    for name, field in model.model_fields.items():
        if _nested(field) is not None:
            continue
        full = f"{prefix}{name.upper()}"
        meaning = field.description or ""
        if f"{full}_FILE" in files:
            meaning += f" Or the name of a file with it, in `{full}_FILE`."
        yield Variable(
            name=full,
            type_text=_type_text(field),
            default_text=_default_text(field),
            meaning=meaning,
        )


def _section(title: str, variables: Iterator[Variable]) -> str:
    rows = [
        f"| `{variable.name}` | {_cell(variable.type_text)} | {_cell(variable.default_text)} "
        f"| {_cell(variable.meaning)} |\n"
        for variable in variables
    ]
    return (
        f"\n## {title}\n\n| variable | type | default | meaning |\n| --- | --- | --- | --- |\n"
        + "".join(rows)
    )


def _tokens_section() -> str:
    fields = ", ".join(f"`{name}`" for name in AccessToken.model_fields)
    return (
        f"\n## Tokens\n\nAn entry of `{PREFIX}TOKENS` or of the file of `{PREFIX}TOKENS_FILE` "
        f"has the keys {fields}; `token_sha256` instead of `token` keeps who reads the file from "
        "using it. The role `cloud_resource_viewer` may read (info, report-capacity, "
        "report-usage), `cloud_resource_admin` may also write (quota, change-commitments), "
        "`metrics` opens the metrics pages alone, whatever HEADROOM_AUTH is. "
        "How tokens are made and rotated: [operations](operations.md#static-tokens).\n\n"
        "```bash\n./run manage make_token limes --role cloud_resource_admin\n```\n"
    )


def _nested(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _type_text(field: FieldInfo) -> str:
    parts = [_kind_text(field.annotation)]
    for rule in field.metadata:
        parts += _bound_texts(rule)
    return ", ".join(part for part in parts if part)


def _kind_text(kind: object) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in get_args(kind))
    if origin in {Union, types.UnionType}:
        return " or ".join(_kind_text(part) for part in get_args(kind) if part is not type(None))
    if origin is tuple:
        return "list"
    if origin is dict:
        return "JSON object"
    words = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "text",
        SecretStr: "secret",
        Path: "file",
    }
    return words[kind] if isinstance(kind, type) else str(kind)


def _bound_texts(rule: object) -> list[str]:
    if isinstance(rule, Ge):
        return [f"at least {rule.ge}"]
    if isinstance(rule, Gt):
        return [f"more than {rule.gt}"]
    if isinstance(rule, Le):
        return [f"at most {rule.le}"]
    if isinstance(rule, Lt):
        return [f"less than {rule.lt}"]
    if isinstance(rule, MinLen):
        return ["not empty"]
    pattern = getattr(rule, "pattern", None)
    return [f"matches `{pattern}`"] if pattern else []


def _default_text(field: FieldInfo) -> str:
    default = field.default
    if default is None:
        return "none"
    if default == "":
        return "empty"
    if isinstance(default, tuple) and default:
        is_plain = any(rule is NoDecode or isinstance(rule, NoDecode) for rule in field.metadata)
        return f"`{','.join(default) if is_plain else json.dumps(default)}`"
    if isinstance(default, tuple):
        return "empty"
    return f"`{json.dumps(default) if isinstance(default, bool) else default}`"


def _first_line(model: type[BaseModel]) -> str:
    line = (model.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return line.partition(" (spec ")[0][:1].lower() + line.partition(" (spec ")[0][1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
