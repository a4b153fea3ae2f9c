"""From granian's request to the mapping that WSGI applications take."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

Environ = dict[str, Any]  # Any: as WSGI has it

_BASE: Environ = {
    "GATEWAY_INTERFACE": "CGI/1.1",
    "SCRIPT_NAME": "",
    "SERVER_SOFTWARE": "Headroom",
    "wsgi.errors": sys.stderr,
    "wsgi.input_terminated": True,
    "wsgi.multiprocess": True,
    "wsgi.multithread": True,
    "wsgi.run_once": False,
    "wsgi.version": (1, 0),
}
_WITHOUT_PREFIX = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}
_MOST_NAMES = 1024
_names: dict[str, str] = dict(_WITHOUT_PREFIX)


def environ_of(scope: Any) -> Environ:  # Any: granian's, without types
    """Return the environment of a request, without its body.

    A header whose name has an underscore is dropped: WSGI could not tell it from the same name
    with hyphens, by which it would pass for a header that a proxy in front has cleaned.
    """
    environ = _BASE.copy()
    path = scope.path
    environ["REQUEST_METHOD"] = scope.method
    environ["PATH_INFO"] = path if path.isascii() else path.encode().decode("latin-1")
    environ["QUERY_STRING"] = scope.query_string
    environ["SERVER_PROTOCOL"] = f"HTTP/{scope.http_version}"
    environ["wsgi.url_scheme"] = scope.scheme
    environ["REMOTE_ADDR"] = _address(scope.client)[0]
    environ["SERVER_NAME"], environ["SERVER_PORT"] = _address(scope.server)
    _add_headers(environ, scope.headers.items())
    if "HTTP_HOST" not in environ:
        environ["HTTP_HOST"] = scope.authority or ""
    return environ


@lru_cache(maxsize=4096)  # of connections, which are kept
def _address(text: str) -> tuple[str, str]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), port


def _add_headers(environ: Environ, headers: list[tuple[str, str]]) -> None:
    for name, text in headers:
        key = _names.get(name)
        if key is None:
            if "_" in name:
                continue
            key = "HTTP_" + name.upper().replace("-", "_")
            if len(_names) < _MOST_NAMES:
                _names[name] = key
        if key in environ:
            separator = ";" if name == "cookie" else ","
            environ[key] = f"{environ[key]}{separator}{text}"
        else:
            environ[key] = text
