"""Exports of results, verified without server or agent (spec hosts, D.15)."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from headroom_host_agent.cli import main
from headroom_host_agent.provision.proofs import FORMAT, ExportError, verify_export
from headroom_host_agent.provision.signing.keys import key_id, sign
from headroom_host_agent.provision.signing.v2 import result_bytes, seal
from hypothesis import given
from hypothesis import strategies as st

HOST = "4b6c8a4e-5a4f-4a53-9d0e-0f5b3c1d2e3f"
OLD, NEW, FOREIGN = (bytes([number]) * 32 for number in (1, 2, 3))


def public(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def kid(seed: bytes) -> str:
    return key_id(public(seed))


def key(seed: bytes) -> dict[str, str]:
    return {"kid": kid(seed), "public_key": base64.b64encode(public(seed)).decode()}


def result(gwid: str, seed: bytes = OLD, **changes: Any) -> dict[str, Any]:
    document = {
        "reservation_id": gwid,
        "host_id": HOST,
        "attempt": 1,
        "fence_epoch": 3,
        "type": "capacity_slice",
        "state": "ok",
        "error": "",
        "data": {"slice": "headroom-42_1.slice"},
        "finished_at": "2026-01-02T03:04:05Z",
        **changes,
    }
    signature = sign(seed, result_bytes(document))
    return {"result": seal(document, kid=kid(seed), signature=signature)}


def reservation(gwid: str, state: str = "deployed", attempt: int = 1) -> dict[str, Any]:
    return {"id": gwid, "attempt": attempt, "state": state}


def export(**changes: Any) -> dict[str, Any]:
    """Return the results of a host that rotated its key: one deployed, one failed, one gone."""
    return {
        "format": FORMAT,
        "host_id": HOST,
        "keys": [key(OLD), key(NEW)],
        "reservations": [
            reservation("42-1"),
            reservation("43-1", "failed"),
            reservation("44-1", "deleted"),
            reservation("45-1", "pending"),
        ],
        "results": [
            result("42-1"),
            result("43-1", NEW, state="error", error="no room"),
            result("44-1"),
            result("44-1", NEW, state="deleted", data=None),
        ],
        **changes,
    }


def problems(document: object, *trusted: str) -> list[tuple[str, str]]:
    found = list(verify_export(document, trusted))
    return [(one.reservation_id, one.problem) for one in found if one.problem]


def test_results_of_each_of_its_keys_hold() -> None:
    found = list(verify_export(export()))

    assert [(one.reservation_id, one.state, one.kid) for one in found] == [
        ("42-1", "ok", kid(OLD)),
        ("43-1", "error", kid(NEW)),
        ("44-1", "ok", kid(OLD)),
        ("44-1", "deleted", kid(NEW)),
    ]
    assert problems(export()) == []


CHANGES = {
    "reservation_id": "99-1",
    "attempt": 2,
    "fence_epoch": 4,
    "type": "hugepages",
    "state": "error",
    "error": "x",
    "data": {"slice": "headroom-42_2.slice"},
    "finished_at": "2026-01-02T03:04:06Z",
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_changed_field_proves_nothing_and_leaves_the_reservation_unproven(field: str) -> None:
    document = export()
    document["results"][0]["result"][field] = CHANGES[field]

    found = problems(document)

    name = "99-1" if field == "reservation_id" else "42-1"
    assert found == [
        (name, "the signature does not hold"),
        ("42-1", "counts as made, and no result that holds says so"),
    ]


@given(st.integers(0, 63), st.integers(1, 255))
def test_a_changed_byte_of_a_signature_proves_nothing(place: int, change: int) -> None:
    document = export(reservations=[])
    sealed = document["results"][1]["result"]
    signature = bytearray(base64.b64decode(sealed["signature"]))
    signature[place] ^= change
    sealed["signature"] = base64.b64encode(signature).decode()

    assert problems(document) == [("43-1", "the signature does not hold")]


def test_what_is_left_out_of_another_host_twice_or_of_another_attempt_is_found() -> None:
    unproven = ("42-1", "counts as made, and no result that holds says so")
    assert problems(export(results=[])) == [unproven]
    assert problems(export(results=[result("42-1", attempt=2)])) == [unproven]
    assert problems(export(results=[result("42-1", state="error")])) == [unproven]
    foreign = export(results=[result("42-1", host_id=HOST.replace("4", "5"))])
    assert problems(foreign) == [("42-1", "it is another host's"), unproven]
    again = ("42-1", "another result of this attempt is there already")
    twice = [result("42-1"), result("42-1", data=None)]
    assert problems(export(results=twice)) == [again]
    died = [result("42-1"), result("42-1", state="error", error="it is gone")]
    assert problems(export(results=died)) == [unproven]
    assert problems(export(results=died[::-1])) == [again, unproven]
    assert problems(export(results=died, reservations=[reservation("42-1", "failed")])) == []
    gone = [result("42-1"), result("42-1", state="deleted", data=None)]
    assert problems(export(results=gone)) == [unproven]


def test_only_keys_that_are_trusted_count() -> None:
    assert problems(export(), kid(OLD), kid(NEW)) == []
    assert [name for name, _ in problems(export(), kid(NEW))] == ["42-1", "44-1", "42-1"]
    forged = export(keys=[key(FOREIGN)], results=[result("42-1", FOREIGN)])
    assert problems(forged) == []  # whose keys these are is for --key to say
    assert problems(forged, kid(OLD))[0] == ("42-1", f"the key {kid(FOREIGN)} is not trusted")


def test_a_key_has_no_other_keys_name() -> None:
    document = export(keys=[key(OLD), key(FOREIGN) | {"kid": kid(NEW)}])
    with pytest.raises(ExportError, match=f"the key has the name {kid(FOREIGN)}"):
        list(verify_export(document))


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        export(format="headroom/host-results/v9"),
        export(host_id=1),
        export(keys={}),
        export(keys=[{"kid": "x", "public_key": "AA=="}]),
        export(keys=[{"kid": "x", "public_key": "?"}]),
        export(results=[1]),
        export(reservations=[{"id": "42-1"}]),
    ],
)
def test_what_is_no_export_is_an_error(document: object) -> None:
    with pytest.raises(ExportError):
        list(verify_export(document))


@pytest.mark.parametrize("sent", [None, 1, {}, {"kid": "x", "signature": "?"}, {"kid": 1}])
def test_what_is_no_result_proves_nothing(sent: object) -> None:
    document = export(results=[{"result": sent}], reservations=[])
    assert len(problems(document)) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)


@given(st.sampled_from(["keys", "results", "reservations"]), st.lists(JSON, max_size=3))
def test_no_file_fails_otherwise(part: str, members: list[Any]) -> None:
    document = export() | {part: members}
    with contextlib.suppress(ExportError):
        list(verify_export(document))


def test_the_command_needs_nothing_but_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headroom_host_agent.cli.DEFAULT_FILE", tmp_path / "none.toml")
    file = tmp_path / "export.json"
    file.write_text(json.dumps(export()))
    offline = ["verify", "--offline", str(file)]

    assert main(offline) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {
        "reservation": "42-1",
        "attempt": 1,
        "state": "ok",
        "key": kid(OLD),
        "ok": True,
    }
    assert main([*offline, "--key", kid(NEW)]) == 1
    assert "2 results hold, 3 do not" in capsys.readouterr().err

    changed = copy.deepcopy(export())
    changed["results"][0]["result"]["error"] = "x"
    file.write_text(json.dumps(changed))
    assert main(offline) == 1
    file.write_text("[" * 100_000)
    assert main(offline) == 1
    assert main(["verify", "--offline", str(tmp_path / "none")]) == 1
    assert main(["verify", "--key", "x", "--sysroot", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 4
