from __future__ import annotations

import pytest

from placement.domain.errors import BadRequest, NotAcceptable
from placement.domain.microversion import negotiated_minor


@pytest.mark.parametrize(
    ("header", "minor"),
    [
        pytest.param(None, 0, id="no header"),
        pytest.param("", 0, id="empty header"),
        pytest.param("compute 2.6", 0, id="other service"),
        pytest.param("placement latest", 39, id="latest"),
        pytest.param("placement 1.10", 10, id="1.10 is above 1.9"),
        pytest.param("compute 2.6, placement 1.5", 5, id="among others"),
        pytest.param("placement 1.5, placement 1.7", 7, id="last wins"),
        pytest.param("Placement 1.5", 5, id="service in any case"),
        pytest.param("placement", 0, id="no version"),
        pytest.param("1.5", 0, id="text without a version"),
    ],
)
def test_negotiated_version(header: str | None, minor: int) -> None:
    assert negotiated_minor(header) == minor


@pytest.mark.parametrize("version", ["0.5", "1.99", "2.0", "1.40"])
def test_versions_out_of_range_are_not_acceptable(version: str) -> None:
    with pytest.raises(NotAcceptable, match=f"Unacceptable version header: {version}") as caught:
        negotiated_minor(f"placement {version}")
    assert caught.value.extra == {"max_version": "1.39", "min_version": "1.0"}
    assert not caught.value.has_code


@pytest.mark.parametrize("version", ["pony.horse", "1.2.3", "LATEST", "1", "1.x", "-1.2", "1.²"])
def test_versions_that_are_no_pair_are_malformed(version: str) -> None:
    with pytest.raises(BadRequest, match="invalid version string: ") as caught:
        negotiated_minor(f"placement {version}")
    assert version in caught.value.message
