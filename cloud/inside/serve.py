"""Serve one WSGI application of OpenStack: serve.py MODULE PORT WORKERS THREADS.

A launcher of our own: some of the services read the command line and would stumble over options
that are not theirs.
"""

from __future__ import annotations

import importlib
import sys

from gunicorn.app.base import BaseApplication


class Service(BaseApplication):  # type: ignore[misc]  # the library has no types
    """An application and how it is served."""

    def __init__(self, module: str, settings: dict[str, object]) -> None:
        self._module = module
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        """Take our settings; those this gunicorn does not know are left out."""
        for name, setting in self._settings.items():
            if name in self.cfg.settings:
                self.cfg.set(name, setting)

    def load(self) -> object:
        """Import the application."""
        return importlib.import_module(self._module).application


def main() -> None:
    """Serve until a signal comes."""
    module, port, workers, threads = sys.argv[1:5]
    sys.argv = [f"{module.split('.', maxsplit=1)[0]}-api"]
    Service(
        module,
        {
            "bind": f"127.0.0.1:{port}",
            "workers": int(workers),
            "threads": int(threads),
            "worker_class": "gthread",
            "timeout": 300,
            "graceful_timeout": 5,
            "keepalive": 65,
            "backlog": 512,
            "loglevel": "warning",
            # Nova asks Neutron for the ports of 150 servers in one address.
            "limit_request_line": 0,
            "control_socket_disable": True,
        },
    ).run()


if __name__ == "__main__":
    main()
