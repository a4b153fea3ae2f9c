"""Serve Keystone's WSGI application; run by the Python of Keystone's own environment.

Keystone parses ``sys.argv`` when it is loaded, so that it cannot live inside another program.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Serve on the loopback port given as the only argument, until killed."""
    port = int(sys.argv.pop())
    from keystone.server.wsgi import initialize_public_application  # noqa: PLC0415 - after argv
    from werkzeug.serving import run_simple  # noqa: PLC0415 - with it

    run_simple("127.0.0.1", port, initialize_public_application(), threaded=True)


main()
