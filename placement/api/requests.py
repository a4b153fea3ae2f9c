"""The request object of Placement's paths: made of little, the rest of it when it is asked for."""

from __future__ import annotations

from typing import Any, Final

from django.core.handlers.wsgi import LimitedStream, WSGIRequest, get_path_info, get_script_name

from journal.known_settings import known_setting

Environ = dict[str, Any]  # Any: as WSGI has it
#: What the framework makes of the head of a body.
_OF_BODY: Final = frozenset({"content_type", "content_params", "_stream", "_read_started"})


def _is_plain(environ: Environ, path_info: str) -> bool:
    """Return whether the framework would take the path as it is, below no other."""
    return (
        path_info.isascii()
        and not environ.get("SCRIPT_NAME")
        and "SCRIPT_URL" not in environ
        and "REDIRECT_URL" not in environ
        and known_setting("FORCE_SCRIPT_NAME") is None
    )


class LeanRequest(WSGIRequest):
    """A request that knows its path, method and headers at once.

    What the framework makes of the type and the length of a body is made once somebody looks at
    it, which nobody does where there is no body.
    """

    resolver_match = None

    def __init__(self, environ: Environ) -> None:
        path_info = environ.get("PATH_INFO", "")
        if _is_plain(environ, path_info):
            script_name = ""
        else:
            script_name, path_info = get_script_name(environ), get_path_info(environ)
        path_info = path_info or "/"
        self.environ = environ
        self.META = environ
        environ["PATH_INFO"], environ["SCRIPT_NAME"] = path_info, script_name
        self.path_info = path_info
        self.path = f"{script_name.rstrip('/')}/{path_info.replace('/', '', 1)}"
        self.method = environ["REQUEST_METHOD"].upper()

    def __getattr__(self, name: str) -> Any:  # Any: as the framework has them
        """Return what belongs to the body.

        Raises:
            AttributeError: the name is another one.
        """
        if name not in _OF_BODY:
            raise AttributeError(name)
        environ = self.environ
        self._set_content_type_params(environ)
        try:
            length_bytes = int(environ.get("CONTENT_LENGTH") or 0)
        except (ValueError, TypeError):
            length_bytes = 0
        made = self.__dict__
        made["_stream"] = LimitedStream(environ["wsgi.input"], length_bytes)
        made.setdefault("_read_started", False)
        return made[name]
