from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.test import Client

from capacity.models import ProjectQuota
from commitments.models import Commitment
from tests.api.conftest import Configure
from tests.api.liquid_client import MEMBER, PROJECT, LiquidClient, assert_text
from tests.factories import make_group

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_refresh")]

USAGE = f"v1/projects/{PROJECT}/report-usage"
QUOTA = f"v1/projects/{PROJECT}/quota"
CAPACITY = "v1/report-capacity"
CHANGE = "v1/change-commitments"
ALL_OFF = {
    "enable_change_commitments": False,
    "enable_report_capacity": False,
    "enable_report_usage": False,
    "enable_quota": False,
}
BAD_BODIES = {
    "empty": b"",
    "truncated": b"{invalid",
    "not an object": b"[1, 2]",
    "a number": b"7",
    "invalid UTF-8": b'{"allAZs": ["\xff\xfe"]}',
    "nested too deep": b"[" * 100_000 + b"]" * 100_000,
    "lone surrogate": b'{"allAZs": ["\\ud800"], "az": "\\ud800", "resources": "\\ud800"}',
    "number beyond float": b'{"infoVersion": 1e999}',
    "NaN": b'{"infoVersion": NaN}',
    "byte order mark": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", [CAPACITY, USAGE, CHANGE])
def test_other_methods_than_post_are_405(liquid: LiquidClient, method: str, path: str) -> None:
    response = liquid.send(method, path)
    assert response.status_code == 405
    assert response["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_info_with_other_method_than_get_is_405(liquid: LiquidClient, method: str) -> None:
    assert liquid.send(method, "v1/info").status_code == 405


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_quota_with_other_method_than_put_is_405(liquid: LiquidClient, method: str) -> None:
    assert liquid.send(method, QUOTA).status_code == 405


@pytest.mark.parametrize("path", [CAPACITY, USAGE, CHANGE])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_disabled_endpoint_is_503_before_the_method_is_looked_at(
    liquid: LiquidClient, configure: Configure, method: str, path: str
) -> None:
    configure(liquid=ALL_OFF)
    assert_text(liquid.send(method, path, b"{invalid"), 503)


def test_disabled_quota_is_503_after_the_method_is_looked_at(
    liquid: LiquidClient, configure: Configure
) -> None:
    configure(liquid=ALL_OFF)
    assert_text(liquid.send("GET", QUOTA), 405)
    assert_text(liquid.send("PUT", QUOTA, b"{invalid"), 503)


def test_info_has_no_switch(liquid: LiquidClient, configure: Configure) -> None:
    make_group()
    configure(liquid=ALL_OFF)
    assert liquid.send("GET", "v1/info").status_code == 200


@pytest.mark.parametrize("path", [CAPACITY, USAGE, CHANGE, QUOTA, "v1/info"])
def test_authentication_comes_before_everything_else(
    liquid: LiquidClient, configure: Configure, path: str
) -> None:
    configure(liquid=ALL_OFF)
    assert_text(liquid.send("DELETE", path, token=None), 401)
    assert_text(liquid.send("DELETE", path, token=MEMBER), 403)


@pytest.mark.parametrize("project_id", ["", "p" * 65, "p%00"])
def test_bad_project_id_in_the_path_is_400(liquid: LiquidClient, project_id: str) -> None:
    make_group()
    usage = liquid.send("POST", liquid.usage(project_id), b"{invalid")
    assert_text(usage, 400, "project id")
    assert_text(liquid.send("PUT", liquid.quota(project_id), b"{invalid"), 400, "project id")


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=list(BAD_BODIES))
@pytest.mark.parametrize(("method", "path"), [("POST", USAGE), ("PUT", QUOTA), ("POST", CHANGE)])
def test_bad_body_is_400_even_when_flavor_groups_are_not_ready(
    liquid: LiquidClient, method: str, path: str, body: bytes
) -> None:
    if body.startswith(b'{"infoVersion"') and path == USAGE:
        body = body.replace(b"infoVersion", b"allAZs")
    assert_text(liquid.send(method, path, body), 400, "body" if path != CHANGE else "")
    assert not Commitment.objects.exists()
    assert not ProjectQuota.objects.exists()


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=list(BAD_BODIES))
def test_capacity_report_takes_any_body(liquid: LiquidClient, body: bytes) -> None:
    make_group()
    response = liquid.send("POST", CAPACITY, body)
    assert response.status_code == 200
    assert all(entry == {"perAZ": {}} for entry in response.json()["resources"].values())


@pytest.mark.parametrize("zone", ["", "any", "unknown", "total", None])
def test_change_in_no_real_zone_is_400(liquid: LiquidClient, zone: str | None) -> None:
    assert_text(liquid.send("POST", CHANGE, {"az": zone, "infoVersion": 1}), 400, "az")


def test_stale_version_is_409_with_both_numbers(liquid: LiquidClient) -> None:
    make_group()
    current = liquid.get_info()["version"]
    for is_dry_run in (False, True):
        body = {"az": "az-a", "infoVersion": 9999, "dryRun": is_dry_run}
        assert_text(liquid.send("POST", CHANGE, body), 409, "9999", str(current))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "v1/info", None),
        ("POST", CAPACITY, {}),
        ("POST", USAGE, {}),
        ("PUT", QUOTA, {}),
        ("POST", CHANGE, {"az": "az-a"}),
    ],
)
def test_flavor_groups_not_ready_is_503(
    liquid: LiquidClient, method: str, path: str, body: Any
) -> None:
    assert_text(liquid.send(method, path, body), 503, "temporarily unavailable", "flavor groups")


def test_too_large_body_is_413(liquid: LiquidClient, settings: Any) -> None:
    make_group()
    body = b" " * ((settings.HEADROOM.liquid.max_body_mib << 20) + 1)
    for method, path in (("POST", CAPACITY), ("POST", USAGE), ("PUT", QUOTA), ("POST", CHANGE)):
        assert_text(liquid.send(method, path, body), 413)


@pytest.mark.parametrize(
    "path",
    [
        "v1/projects/",
        "v1/projects/p1",
        "v1/projects/p1/other",
        "v1/projects/p1/quota/",
        "v1/projects/a/b/quota",
        "v1/info/",
        "v1/report-capacity/",
        "v1/change-commitments/",
        "v1",
        "",
        "v1/projects/p1/report-usage%0A",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_unknown_path_is_404_and_never_a_redirect(
    liquid: LiquidClient, method: str, path: str
) -> None:
    assert_text(liquid.send(method, path, {}), 404, "Not found")


@pytest.mark.parametrize("method", ["get", "post"])
def test_prefix_without_slash_is_not_redirected(method: str) -> None:
    assert getattr(Client(), method)("/commitments").status_code == 404


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "garbage", "*/*"])
def test_accept_and_content_type_of_the_caller_do_not_matter(
    liquid: LiquidClient, accept: str
) -> None:
    make_group()
    response = liquid.send("POST", USAGE, {}, Accept=accept, Content_Type="multipart/form-data")
    assert response.status_code == 200
    assert response["Content-Type"] == "application/json"


@pytest.mark.parametrize("sent", ["abc-1.2:3_x", "x" * 128])
def test_request_id_of_the_caller_is_returned(liquid: LiquidClient, sent: str) -> None:
    assert liquid.send("GET", "v1/info", X_Request_ID=sent)["X-Request-ID"] == sent


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, "é", "a;b"])
def test_unsafe_request_id_is_replaced_by_a_uuid(liquid: LiquidClient, sent: str) -> None:
    returned = liquid.send("GET", "v1/info", X_Request_ID=sent)["X-Request-ID"]
    assert uuid.UUID(returned).version == 4


def test_unknown_host_is_refused_in_plain_text(liquid: LiquidClient, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["limes.example"]
    settings.DEBUG = False
    response = liquid.send("GET", "v1/info")
    assert response.status_code == 400
    assert response["Content-Type"] == "text/plain; charset=utf-8"


def test_failing_service_is_500_in_plain_text(
    liquid: LiquidClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        message = "secret detail"
        raise RuntimeError(message)

    monkeypatch.setattr("commitments.api.views.current_service_info", fail)
    response = liquid.send("GET", "v1/info")
    assert_text(response, 500, "Internal server error")
    assert b"secret" not in response.content


TORN_UUID = "aaaaaaaa-0000-4000-8000\n- commitment bbbbbbbb: accepted"


@pytest.mark.parametrize(
    ("new_status", "is_dry_run"),
    [("confirmed", False), ("planned", False), ("confirmed", True)],
    ids=["confirming", "not confirming", "dry run"],
)
def test_what_a_caller_sent_breaks_no_line_of_the_answer(
    liquid: LiquidClient, new_status: str, *, is_dry_run: bool
) -> None:
    make_group("hana_1")
    commitment = {"uuid": TORN_UUID, "newStatus": new_status, "amount": 1}
    commitment |= {"expiresAt": "2099-01-01T00:00:00Z"}
    changes = {"totalConfirmedAfter": int(new_status == "confirmed"), "commitments": [commitment]}
    body = {
        "az": "az-a",
        "infoVersion": liquid.get_info()["version"],
        "dryRun": is_dry_run,
        "byProject": {PROJECT: {"byResource": {"hw_version_hana_1_ram": changes}}},
    }
    response = liquid.send("POST", CHANGE, body)
    if new_status == "planned":
        assert_text(response, 422, "unexpected commitment format")
        return
    reason = response.json()["rejectionReason"]
    assert "unexpected commitment format" in reason
    assert reason.isprintable()
