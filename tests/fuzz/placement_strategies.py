"""Requests of the Placement API: valid ones about a small region, and all ways to spoil them."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import UUID

from hypothesis import strategies as st

from tests.fuzz.strategies import JUNK, places

ROOT, CHILD, SHARED = (str(UUID(int=number)) for number in (1, 2, 3))
HELD, MOVED, FRESH = (str(UUID(int=number)) for number in (11, 12, 13))
AGGREGATE = str(UUID(int=21))
OWNERS = {"project_id": "project-1", "user_id": "user-1"}
INVENTORY = {
    "total": 64,
    "reserved": 1,
    "min_unit": 1,
    "max_unit": 64,
    "step_size": 1,
    "allocation_ratio": 2.0,
}
CONSUMER = {
    "allocations": {ROOT: {"resources": {"VCPU": 1, "MEMORY_MB": 16}}},
    **OWNERS,
    "consumer_generation": 1,
    "consumer_type": "INSTANCE",
    "mappings": {"": [ROOT]},
}
LISTED = {
    "allocations": [{"resource_provider": {"uuid": ROOT}, "resources": {"VCPU": 1}}],
    **OWNERS,
}
SEVERAL = {HELD: CONSUMER, MOVED: {**CONSUMER, "allocations": {}, "consumer_generation": None}}
RESHAPE = {
    "inventories": {
        ROOT: {
            "resource_provider_generation": 0,
            "inventories": {"VCPU": INVENTORY, "MEMORY_MB": INVENTORY},
        }
    },
    "allocations": {HELD: CONSUMER},
}
SIMULATION = {
    "query": "resources=VCPU:1",
    "allocations": [{"resource_provider_uuid": ROOT, "resources": {"VCPU": 3}}],
    "removed_providers": [CHILD],
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method of a path; ``{}`` in the path is what a client fills in.

    Attributes:
        known: Values for it that lead somewhere.
        version: One in which the body is valid.
    """

    method: str
    path: str
    known: tuple[str, ...] = ()
    body: Any = None
    version: str = "1.39"


PROVIDER = "/placement/resource_providers/{}"
PROVIDERS = (ROOT, CHILD, SHARED)
CLASSES = ("VCPU", "CUSTOM_FUZZ", "CUSTOM_NEW", "BOGUS")
TRAITS = ("HW_CPU_X86_AVX", "CUSTOM_FUZZ", "CUSTOM_NEW", "BOGUS")
GENERATION = {"resource_provider_generation": 0}
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/placement"),
    Endpoint("GET", "/placement/resource_providers"),
    Endpoint(
        "POST",
        "/placement/resource_providers",
        body={"name": "new", "uuid": FRESH, "parent_provider_uuid": ROOT},
    ),
    Endpoint("GET", PROVIDER, PROVIDERS),
    Endpoint("PUT", PROVIDER, PROVIDERS, {"name": "renamed", "parent_provider_uuid": SHARED}),
    Endpoint("DELETE", PROVIDER, PROVIDERS),
    Endpoint("GET", f"{PROVIDER}/inventories", PROVIDERS),
    Endpoint(
        "POST",
        f"{PROVIDER}/inventories",
        PROVIDERS,
        {**INVENTORY, **GENERATION, "resource_class": "CUSTOM_FUZZ"},
    ),
    Endpoint(
        "PUT",
        f"{PROVIDER}/inventories",
        PROVIDERS,
        {**GENERATION, "inventories": {"VCPU": INVENTORY, "MEMORY_MB": INVENTORY}},
    ),
    Endpoint("DELETE", f"{PROVIDER}/inventories", PROVIDERS),
    Endpoint("GET", f"/placement/resource_providers/{ROOT}/inventories/{{}}", CLASSES),
    Endpoint(
        "PUT",
        f"/placement/resource_providers/{ROOT}/inventories/{{}}",
        CLASSES,
        {**INVENTORY, **GENERATION},
    ),
    Endpoint("DELETE", f"/placement/resource_providers/{ROOT}/inventories/{{}}", CLASSES),
    Endpoint("GET", f"{PROVIDER}/usages", PROVIDERS),
    Endpoint("GET", f"{PROVIDER}/allocations", PROVIDERS),
    Endpoint("GET", f"{PROVIDER}/aggregates", PROVIDERS),
    Endpoint("PUT", f"{PROVIDER}/aggregates", PROVIDERS, {**GENERATION, "aggregates": [AGGREGATE]}),
    Endpoint("PUT", f"{PROVIDER}/aggregates", PROVIDERS, [AGGREGATE], "1.18"),
    Endpoint("GET", f"{PROVIDER}/traits", PROVIDERS),
    Endpoint("PUT", f"{PROVIDER}/traits", PROVIDERS, {**GENERATION, "traits": ["CUSTOM_FUZZ"]}),
    Endpoint("DELETE", f"{PROVIDER}/traits", PROVIDERS),
    Endpoint("GET", "/placement/traits"),
    Endpoint("GET", "/placement/traits/{}", TRAITS),
    Endpoint("PUT", "/placement/traits/{}", TRAITS),
    Endpoint("DELETE", "/placement/traits/{}", TRAITS),
    Endpoint("GET", "/placement/resource_classes"),
    Endpoint("POST", "/placement/resource_classes", body={"name": "CUSTOM_NEW"}),
    Endpoint("GET", "/placement/resource_classes/{}", CLASSES),
    Endpoint("PUT", "/placement/resource_classes/{}", CLASSES),
    Endpoint("PUT", "/placement/resource_classes/{}", CLASSES, {"name": "CUSTOM_OTHER"}, "1.6"),
    Endpoint("DELETE", "/placement/resource_classes/{}", CLASSES),
    Endpoint("GET", "/placement/usages"),
    Endpoint("GET", "/placement/allocations/{}", (HELD, FRESH)),
    Endpoint("PUT", "/placement/allocations/{}", (HELD, FRESH), CONSUMER),
    Endpoint("PUT", "/placement/allocations/{}", (HELD, FRESH), LISTED, "1.10"),
    Endpoint("DELETE", "/placement/allocations/{}", (HELD, FRESH)),
    Endpoint("POST", "/placement/allocations", body=SEVERAL),
    Endpoint("GET", "/placement/allocation_candidates"),
    Endpoint("POST", "/placement/reshaper", body=RESHAPE),
    Endpoint("GET", "/api/v1/placement/explain"),
    Endpoint("POST", "/api/v1/placement/simulate", body=SIMULATION),
    Endpoint("GET", "/api/v1/placement/history"),
    Endpoint("GET", "/api/v1/placement/providers"),
)
WITH_BODY = tuple(endpoint for endpoint in ENDPOINTS if endpoint.body is not None)
WITH_NAME = tuple(endpoint for endpoint in ENDPOINTS if endpoint.known)
LISTS = tuple(endpoint for endpoint in ENDPOINTS if endpoint.method == "GET" and not endpoint.known)

ODD_TEXTS = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "VCPU\n",
    "CUSTOM_NEW\n",
    "CUSTOM_NEW\r\nX-Injected: 1",
    f"{HELD}\n",
    f"{{{HELD}}}",
    f"urn:uuid:{HELD}",
    HELD.upper(),
    HELD.replace("-", ""),
    "-" * 36,
    "CUSTOM_" + "X" * 249,
    "CUSTOM_" + "X" * 70_000,
    "9" * 5000,
    "-1",
    "1e400",
    "NaN",
    "٣",
    "ünï",
    "\u2028\u202e\ufeff",
    "💥",
    "%",
    "%00",
    "..",
    "'; DROP TABLE placement_provider; --",
    "%s %(name)s {0}",
)
RAW_BYTES = (b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\x80")


def spoiled(body: Any) -> st.SearchStrategy[Any]:
    """Return bodies with one to three nodes replaced, dropped, renamed or added."""

    @st.composite
    def spoil(draw: st.DrawFn) -> Any:
        document = {"": deepcopy(body)}
        junk_values = st.one_of(st.sampled_from(JUNK), st.sampled_from(ODD_TEXTS))
        for _ in range(draw(st.integers(1, 3))):
            path = draw(st.sampled_from(places(document)))
            parent: Any = document
            for step in path[:-1]:
                parent = parent[step]
            deed = draw(st.sampled_from(("replace", "replace", "drop", "rename", "add", "repeat")))
            junk = deepcopy(draw(junk_values))
            at_top = len(path) == 1
            if deed == "replace" or at_top:
                parent[path[-1]] = junk
            elif isinstance(parent, list):
                parent.insert(0, junk if deed == "add" else deepcopy(parent[path[-1]]))
            elif deed == "drop":
                del parent[path[-1]]
            elif deed == "rename":
                parent[str(junk)] = parent.pop(path[-1])
            else:
                parent[str(junk)] = junk
        return document[""]

    return spoil()


@st.composite
def damaged(draw: st.DrawFn, body: Any) -> bytes:
    """Return the bytes of a body, damaged below the level of JSON."""
    text = json.dumps(body)
    raw = text.encode()
    at = draw(st.integers(0, len(raw) - 1))
    key = next(iter(body)) if isinstance(body, dict) else "x"
    return draw(
        st.sampled_from(
            (
                b"",
                raw[:at],
                raw[:at] + raw[at + 1 :],
                raw[:at] + draw(st.sampled_from(RAW_BYTES)) + raw[at:],
                b"\xef\xbb\xbf" + raw,
                text.encode("utf-16"),
                text.encode("utf-32"),
                raw + b"{}",
                raw.replace(b"{", f'{{"{key}": null, '.encode(), 1),
                raw[:-1] + f', "{key}": 1}}'.encode(),
                b"[" * 900 + raw + b"]" * 900,
                b'{"a":' * 100_000,
                b"[" * 100_000 + b"]" * 100_000,
                b'{"allocations":' * 500 + raw + b"}" * 500,
                b"NaN",
                b"-Infinity",
                b"1" + b"0" * 5000,
                b'"\\ud800"',
                b'{"name": "\\ud800"}',
                raw.replace(b"1", b"1e999", 1),
                raw.replace(b"1", b"9" * 5000, 1),
                raw.replace(b"1", b"1.5", 1),
                raw.replace(b"1", b"1.0", 1),
            )
        )
    )


#: Keys of every query by path; requests mix them up.
GROUP_KEYS = ("resources", "required", "member_of", "in_tree")
KEYS = {
    "/placement/resource_providers": ("name", "uuid", *GROUP_KEYS),
    "/placement/traits": ("name", "associated"),
    "/placement/usages": ("project_id", "user_id", "consumer_type"),
    "/placement/allocation_candidates": (
        *(f"{key}{suffix}" for key in GROUP_KEYS for suffix in ("", "1", "_A")),
        "limit",
        "group_policy",
        "root_required",
        "same_subtree",
    ),
    "/api/v1/placement/history": ("consumer", "provider", "marker", "limit"),
    "/api/v1/placement/providers": ("marker", "limit"),
}
QUERY_KEYS = tuple(dict.fromkeys([*(key for keys in KEYS.values() for key in keys), "bogus"]))
QUERY_VALUES = (
    "VCPU:1",
    "VCPU:1,MEMORY_MB:16",
    "VCPU:99999999999999999999",
    "VCPU:" + "9" * 5000,
    "VCPU:-1",
    "VCPU:",
    ":",
    "CUSTOM_FUZZ:1",
    "\x00:1",
    "HW_CPU_X86_AVX",
    "!CUSTOM_FUZZ",
    "in:HW_CPU_X86_AVX,CUSTOM_FUZZ",
    "in:",
    "!in:",
    ",",
    f"in:{AGGREGATE}",
    f"!in:{AGGREGATE},{ROOT}",
    AGGREGATE,
    ROOT,
    "none",
    "isolate",
    "1",
    "0",
    "10",
    "true",
    "startswith:CUSTOM_",
    "in:\x00",
    "project-1",
    "all",
    "unknown",
    "INSTANCE",
    "1,_A",
    *ODD_TEXTS,
)


@st.composite
def query_strings(draw: st.DrawFn) -> str:
    """Return a raw query string, as WSGI has it: bytes in Latin-1."""
    pairs = draw(
        st.lists(st.tuples(st.sampled_from(QUERY_KEYS), st.sampled_from(QUERY_VALUES)), max_size=5)
    )
    texts = [
        f"{key}={quote(value) if draw(st.booleans()) else value}".encode("utf-8", "replace")
        for key, value in pairs
    ]
    if draw(st.integers(0, 5)) == 0:
        odd = (b"=", b"&&", b"%", b"%ff=%fe", b"limit=%ED%A0%80", b"resources=%C0%80:1", b";", b"a")
        texts.append(draw(st.sampled_from((*odd, *RAW_BYTES))))
    return b"&".join(texts).decode("latin-1")


ODD_VERSIONS = (
    "",
    "placement",
    "placement ",
    "placement latest",
    "placement LATEST",
    "placement 1.0",
    "placement 1.10, placement 1.39",
    "placement 1.40",
    "placement 0.1",
    "placement 1.",
    "placement 1.-1",
    "placement 1.٣",
    "placement 1.٣".encode().decode("latin-1"),
    "placement " + "9" * 5000 + ".1",
    "placement 1." + "9" * 5000,
    "placement 1e0.1",
    "compute 2.1",
    ",,,",
    "placement\x001.1",
    "placement 1.1\x00",
    "x" * 20_000,
)
VERSIONS = tuple(f"placement 1.{minor}" for minor in range(40))
ODD_HEADERS = {
    "OpenStack-API-Version": ODD_VERSIONS,
    "Content-Type": ("", "text/plain", "application/json; charset=latin-1", "a/b;" * 2000, "\x00"),
    "Content-Length": ("", "0", "-1", "1", "99999", "1.5", "9" * 5000, "²", "\x00"),
    "Accept": ("", "text/html", "text/plain", "a;q=x", "*/*;q=0", ",;=,", "x" * 20_000, "\x00"),
    "If-Match": ("", "1", '"1"', "W/1", "9" * 5000, "²", "-1", "\x00"),
    "X-Auth-Token": ("", ":", "admin:\x00", "a:b:c", "x" * 20_000, "\x00", "ü"),
    "X-Roles": ("", ",,", "admin", "\x00", "service," * 2000),
    "X-Project-Id": ("", "\x00", "x" * 20_000, "ü"),
    "OpenStack-System-Scope": ("", "all", "\x00"),
    "Origin": ("", "http://valid.example.com", "null", "\x00"),
    "Access-Control-Request-Method": ("", "GET", "a\r\nb"),
    "Host": ("", "a b", "[::1", "x" * 300, "ü"),
    "X-Forwarded-Host": ("", "a,b", "\x00"),
    "X-Forwarded-Proto": ("", "gopher", "a\nb"),
    "X-Request-ID": ("", "x" * 20_000, "a\nb"),
}
