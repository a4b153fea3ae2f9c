"""What ``doctor`` says of times of clients and of a cut-over (docs/gateway.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config.sections_gateway import GatewaySettings
from core.doctor.findings import Severity
from placement.doctor import check_cutover
from placement.models import Cutover, MirroredWrite, Phase
from tests.placement.rows import make_provider

pytestmark = pytest.mark.django_db
OK, WARNING, ERROR = Severity.OK, Severity.WARNING, Severity.ERROR
URL = "http://localhost:1/placement"


def told(settings: Any, **fields: Any) -> list[tuple[Severity, str]]:
    section = GatewaySettings(**fields)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"gateway": section})
    return [(one.severity, one.found) for one in check_cutover()]


def test_without_another_placement(settings: Any) -> None:
    assert told(settings) == [(OK, "no other Placement")]
    Cutover.objects.create(phase=Phase.SWITCHED)
    ((severity, text),) = told(settings)
    assert severity is ERROR
    assert "a cut-over is switched" in text


def test_how_long_clients_have_to_wait(settings: Any, tmp_path: Path) -> None:
    ((severity, text),) = told(settings, upstream_url=URL, timeout_seconds=20)
    assert severity is OK
    assert text.startswith("a write takes 20.9 s at the most")
    nova = tmp_path / "nova.conf"
    nova.write_text("[placement]\ntimeout = 20\nconnect_retries = 1\n")
    _, late, once = told(settings, upstream_url=URL, timeout_seconds=20, nova_config=nova)
    assert late[0] is once[0] is WARNING
    assert "timeout = 20: Nova gives up before a request has to end, 20.9 s" in late[1]
    assert "status_code_retries = not set" in once[1]
    nova.write_text("[placement]\ntimeout = 30\nconnect_retries = 1\nstatus_code_retries = 2\n")
    _, (severity, text) = told(settings, upstream_url=URL, timeout_seconds=20, nova_config=nova)
    assert (severity, text.startswith("Nova's [placement] fits")) == (OK, True)
    for broken in (b"timeout = 3\n", b"\xff"):
        nova.write_bytes(broken)
        _, (severity, text) = told(settings, upstream_url=URL, nova_config=nova)
        assert severity is WARNING
        assert "cannot be read" in text
    nova.unlink()
    _, (severity, text) = told(settings, upstream_url=URL, nova_config=nova)
    assert severity is WARNING


def test_what_endangers_a_cut_over(settings: Any) -> None:
    Cutover.objects.create(phase=Phase.COPYING, last_error="it answered 503")
    make_provider("mine")
    MirroredWrite.objects.create(
        method="PUT",
        target="/traits/CUSTOM_A",
        minor=39,
        body=b"",
        roots=[],
        consumers=[],
        providers_after={},
        consumers_after={},
        refusal="409",
    )
    found = told(settings, upstream_url=URL, allow_mode_override=True)
    told_as = {text.partition(": ")[2]: severity for severity, text in found[1:]}
    assert any("ALLOW_MODE_OVERRIDE" in text for text in told_as)
    assert any("1 providers are our own, such as mine" in text for text in told_as)
    texts = [text for _, text in found]
    assert "1 mirrored writes are refused over there" in texts
    assert (WARNING, "the last step of the cut-over stopped: it answered 503") in found
    assert {severity for _, severity in told_as.items()} >= {ERROR}
