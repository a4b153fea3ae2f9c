"""Opens every list of the admin of a running demo, and tells which have no rows.

``python -m tests.e2e.demo_lists [--port 8000] [--seconds 120]`` asks until all have, or the time
is over; the status is 1 then. What a demo cannot have says so on its own list.
"""

from __future__ import annotations

import argparse
import html
import http.client
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlencode

from config.launcher.demo import ADDRESS, DEFAULT_PORT
from config.launcher.places import this_checkout
from console.theme import SECTIONS

LOGIN = "/admin/login/"
ROWS = 'id="result_list"'
NOTHING = re.compile(r"No results found\s*</h2>\s*<p[^>]*>\s*(.+?)\s*</p>", re.DOTALL)
LOOKS_SECONDS = 1.0
NOT_IN_A_DEMO: Mapping[str, str] = {
    "placement.shadowdifference": "HEADROOM_GATEWAY__UPSTREAM_URL",
    "placement.hybridreport": "HEADROOM_GATEWAY__UPSTREAM_URL",
    "placement.splitwrite": "HEADROOM_GATEWAY__UPSTREAM_URL",
    "hosts.servermigration": "HEADROOM_FEED__CLOUD",
    "hosts.hostlifecycle": "HEADROOM_FEED__ONBOARDS_HOSTS",
    "bridge.mirrorstate": "HEADROOM_BRIDGE__CLUSTERS",
    "bridge.ownedfieldconflict": "HEADROOM_HYPERVISORS__SYNC",
}
"""Lists of what a demo does not have, with the setting that their empty page has to name."""


def lists() -> dict[str, str]:
    """Return the address of each list of the admin, by label of its model."""
    tabs = [tab for _, entries in SECTIONS for entry in entries for tab in entry.tabs]
    return {
        tab.model: f"/admin/{tab.model.replace('.', '/')}/"
        for tab in tabs
        if tab.page == "changelist" and not tab.url_name
    }


@dataclass(slots=True)
class Visitor:
    """Somebody who is signed in to the admin of a demo."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, form: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Get a page, or send a form to it."""
        link = http.client.HTTPConnection(ADDRESS, self.port, timeout=30)
        headers = {"Cookie": "; ".join(f"{name}={text}" for name, text in self.cookies.items())}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        method, body = ("GET", None) if form is None else ("POST", urlencode(form))
        try:
            link.request(method, path, body=body, headers=headers)
            response = link.getresponse()
            for line in response.headers.get_all("Set-Cookie") or []:
                for name, morsel in SimpleCookie(line).items():
                    self.cookies[name] = morsel.value
            return response.status, response.read().decode()
        finally:
            link.close()

    def sign_in(self, name: str, password: str) -> None:
        """Sign in.

        Raises:
            AssertionError: the login is refused.
        """
        self.ask(LOGIN)
        form = {"username": name, "password": password}
        form["csrfmiddlewaretoken"] = self.cookies["csrftoken"]
        status, page = self.ask(LOGIN, form)
        assert status == http.client.FOUND, page

    def empty_lists(self, labels: Iterable[str] | None = None) -> dict[str, str]:
        """Return what the lists without rows say instead, by label; of some lists, or of all."""
        found = {}
        paths = lists()
        for label in paths if labels is None else labels:
            path = paths[label]
            status, page = self.ask(path)
            assert status == http.client.OK, f"{path}: {status}"
            if ROWS not in page:
                said = NOTHING.search(page)
                found[label] = html.unescape(said[1]) if said else "?"
        return found


def missing_of(empty: Mapping[str, str]) -> dict[str, str]:
    """Return those of the empty lists that a demo should fill, or that do not say why not."""
    return {
        label: said
        for label, said in empty.items()
        if label not in NOT_IN_A_DEMO or NOT_IN_A_DEMO[label] not in said
    }


def main() -> int:
    """Ask a running demo; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to wait for rows")
    parser.add_argument("--password-file", type=Path, default=None)
    asked = parser.parse_args()
    kept = asked.password_file or this_checkout().local / "demo-admin-password"
    visitor = Visitor(asked.port)
    visitor.sign_in("admin", kept.read_text(encoding="utf-8").strip())
    started = time.monotonic()
    empty = visitor.empty_lists()
    missing = missing_of(empty)
    while missing and time.monotonic() - started < asked.seconds:
        time.sleep(LOOKS_SECONDS)
        before, missing = missing, missing_of(visitor.empty_lists(missing))
        passed = time.monotonic() - started
        for label in sorted(set(before) - set(missing)):
            sys.stdout.write(f"{passed:6.1f} s  {label} has rows\n")
        sys.stdout.flush()
    passed = time.monotonic() - started
    sys.stdout.write(f"{len(lists())} lists, {len(missing)} without rows after {passed:.1f} s\n")
    for label, said in sorted(empty.items()):
        if label in missing:
            sys.stdout.write(f"EMPTY  {label}: {said}\n")
        elif label in NOT_IN_A_DEMO:
            sys.stdout.write(f"has none here  {label}: {said}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
