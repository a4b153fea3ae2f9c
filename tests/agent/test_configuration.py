"""The agent's configuration: environment before file before default (spec hosts, A.2)."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from headroom_host_agent.configuration import KEYS, PREFIX, ConfigurationError, load_settings
from headroom_host_agent.process.settings import AgentSettings, LeaseLoss
from headroom_host_agent.resources.facts import Counting

GIB = 1024**3


def settings(environment: dict[str, str], file: Path | None = None) -> AgentSettings:
    return load_settings(file, environment)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "host-agent.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_configuration_nothing_is_oversold() -> None:
    found = settings({})

    assert found == AgentSettings()
    for resource in ("cpu", "memory", "disk", "network", "disk_io"):
        assert getattr(found, f"oversubscription_{resource}") == 1
    assert (found.capacity_disk_io, found.max_image_storage) == (10**9, Decimal("0.2"))
    assert (found.max_vcpus_per_instance, found.max_memory_per_instance) == (0, 0)
    assert (found.upload_burst_multiplier, found.download_burst_multiplier) == (4, 4)
    assert found.data_dir == Path("/var/lib/headroom")


def test_a_profile_selects_another_agents_defaults(tmp_path: Path) -> None:
    file = written(tmp_path, 'profile = "hypeman"\n[oversubscription]\nnetwork = 1.5\n')

    found = settings({}, file)

    assert found.oversubscription_cpu == 4
    assert found.oversubscription_disk_io == 2
    assert found.oversubscription_network == Decimal("1.5")
    assert (found.max_vcpus_per_instance, found.max_memory_per_instance) == (16, 32 * GIB)


# key, field, text, value, names of the other agent with a lenient text
TABLE: list[tuple[str, str, str, Any, tuple[str, ...]]] = [
    ("capacity.cpu", "capacity_cpu", "8", 8, ()),
    ("capacity.memory", "capacity_memory", "1GiB", GIB, ()),
    ("capacity.disk", "capacity_disk", "1GiB", GIB, ("CAPACITY__DISK", "DISK_LIMIT")),
    (
        "capacity.network",
        "capacity_network",
        "1Gbps",
        125_000_000,
        ("CAPACITY__NETWORK", "NETWORK_LIMIT"),
    ),
    ("capacity.disk_io", "capacity_disk_io", "1GB/s", GIB, ("CAPACITY__DISK_IO", "DISK_IO_LIMIT")),
    *(
        (
            f"oversubscription.{resource}",
            f"oversubscription_{resource}",
            "1.5",
            Decimal("1.5"),
            (f"OVERSUBSCRIPTION__{resource.upper()}", f"OVERSUB_{resource.upper()}"),
        )
        for resource in ("cpu", "memory", "disk", "network", "disk_io")
    ),
    (
        "limits.max_image_storage",
        "max_image_storage",
        "0.5",
        Decimal("0.5"),
        ("LIMITS__MAX_IMAGE_STORAGE", "MAX_IMAGE_STORAGE"),
    ),
    (
        "limits.max_vcpus_per_instance",
        "max_vcpus_per_instance",
        "16",
        16,
        ("LIMITS__MAX_VCPUS_PER_INSTANCE", "MAX_VCPUS_PER_INSTANCE"),
    ),
    (
        "limits.max_memory_per_instance",
        "max_memory_per_instance",
        "32GB",
        32 * GIB,
        ("LIMITS__MAX_MEMORY_PER_INSTANCE", "MAX_MEMORY_PER_INSTANCE"),
    ),
    (
        "network.uplink_interface",
        "uplink_interface",
        "bond0",
        "bond0",
        ("NETWORK__UPLINK_INTERFACE", "UPLINK_INTERFACE"),
    ),
    (
        "network.upload_burst_multiplier",
        "upload_burst_multiplier",
        "3",
        3,
        ("NETWORK__UPLOAD_BURST_MULTIPLIER", "UPLOAD_BURST_MULTIPLIER"),
    ),
    (
        "network.download_burst_multiplier",
        "download_burst_multiplier",
        "3",
        3,
        ("NETWORK__DOWNLOAD_BURST_MULTIPLIER", "DOWNLOAD_BURST_MULTIPLIER"),
    ),
    ("data_dir", "data_dir", "/srv", Path("/srv"), ("DATA_DIR",)),
    ("directories.images", "images_directory", "/base", Path("/base"), ()),
    ("directories.oci_cache", "oci_cache_directory", "/oci", Path("/oci"), ()),
    ("directories.volumes", "volumes_directory", "/volumes", Path("/volumes"), ()),
    ("server.url", "server_url", "https://h.example:8443/x/", "https://h.example:8443/x", ()),
    ("server.ca", "server_ca", "/etc/ca.pem", Path("/etc/ca.pem"), ()),
    ("report.interval", "report_interval_seconds", "5", 5, ()),
    ("poll.min_interval", "poll_interval_seconds", "5", 5, ()),
    ("verify.interval", "verify_interval_seconds", "60", 60, ()),
    ("expire.interval", "expire_interval_seconds", "5", 5, ()),
    ("job.deadline", "job_deadline_seconds", "60", 60, ()),
    ("cleanup.at", "cleanup_minute", "03:30", 210, ()),
    ("cleanup.max_per_run", "cleanup_most", "9", 9, ()),
    ("fence.on_lease_loss", "on_lease_loss", "release", LeaseLoss.RELEASE, ()),
    ("fence.release_after", "release_after_seconds", "60", 60, ()),
    ("enforce", "enforce", "true", True, ()),
    ("provisioners.enabled", "provisioners", "noop, vgpu", ("noop", "vgpu"), ()),
    ("capacity_slice.cap_slices", "cap_slices", "user.slice", ("user.slice",), ()),
    ("capacity_slice.allow_machine_slice", "allow_machine_slice", "true", True, ()),
    ("libvirt.uri", "libvirt_uri", "qemu:///system", "qemu:///system", ()),
    ("metrics.port", "metrics_port", "9180", 9180, ()),
    ("counting", "counting", "active", Counting.ACTIVE, ()),
    ("defaults.apply_oversubscription", "apply_oversubscription", "false", False, ()),
    ("reserved_for_host.cpu", "reserved_cpu", "2", 2, ()),
    ("reserved_for_host.memory", "reserved_memory", "4GiB", 4 * GIB, ()),
    ("reserved_for_host.disk", "reserved_disk", "4GiB", 4 * GIB, ()),
    ("limits.max_overlay_per_instance", "max_overlay_per_instance", "1GiB", GIB, ()),
    ("gpu.passthrough_vendors", "gpu_vendors", "10de, 1002", ("10de", "1002"), ()),
]


def test_every_key_is_in_the_table() -> None:
    assert {row[0] for row in TABLE} == set(KEYS)


def toml(key: str, text: str) -> str:
    table, _, name = key.rpartition(".")
    return (f"[{table}]\n" if table else "") + f'{name} = "{text}"\n'


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_a_key_has_its_names(
    tmp_path: Path, row: tuple[str, str, str, Any, tuple[str, ...]]
) -> None:
    key, field, text, value, aliases = row
    own = PREFIX + key.upper().replace(".", "__")
    file = written(tmp_path, toml(key, text))

    assert getattr(settings({}, file), field) == value
    for name in (own, own.lower(), *aliases, *(alias.lower() for alias in aliases)):
        assert getattr(settings({name: text}), field) == value
        assert getattr(settings({name: ""}), field) == getattr(AgentSettings(), field)


def test_the_environment_precedes_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "[capacity]\ncpu = 4\n")

    assert settings({"HEADROOM_AGENT__CAPACITY__CPU": "8"}, file).capacity_cpu == 8
    assert settings({}, file).capacity_cpu == 4


def test_names_of_one_key_must_agree() -> None:
    own, newer, older = "HEADROOM_AGENT__CAPACITY__DISK", "CAPACITY__DISK", "DISK_LIMIT"

    assert settings({own: "1GiB", newer: "1gb"}).capacity_disk == GIB
    for pair in ((own, newer), (own, older), (newer, older)):
        with pytest.raises(ConfigurationError, match="must not differ"):
            settings({pair[0]: "1GiB", pair[1]: "2GiB"})


def test_another_agents_names_are_read_leniently_and_ours_strictly() -> None:
    assert settings({"NETWORK_LIMIT": "10Gb/s"}).capacity_network == 10 * GIB
    with pytest.raises(ConfigurationError, match="small b"):
        settings({"HEADROOM_AGENT__CAPACITY__NETWORK": "10Gb/s"})
    with pytest.raises(ConfigurationError, match="negative"):
        settings({"NETWORK_LIMIT": "-8bps"})


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("oversubscription.cpu", "0.99"),
        ("oversubscription.memory", "0.5"),
        ("oversubscription.cpu", "0"),
        ("oversubscription.disk", "0"),
        ("oversubscription.disk", "-1"),
        ("oversubscription.disk", "NaN"),
        ("oversubscription.disk", "inf"),
        ("oversubscription.disk", "much"),
        ("oversubscription.disk", "1.0001"),
        ("limits.max_image_storage", "0"),
        ("limits.max_image_storage", "1.1"),
        ("limits.max_image_storage", "sNaN"),
        ("limits.max_vcpus_per_instance", "-1"),
        ("limits.max_memory_per_instance", "32gb"),
        ("network.upload_burst_multiplier", "0"),
        ("network.download_burst_multiplier", "1.5"),
        ("network.uplink_interface", "../eth0"),
        ("capacity.cpu", "0"),
        ("capacity.disk", "1.5GB"),
        ("capacity.disk_io", "1Gbps"),
        ("capacity.network", "125MBps"),
        ("counting", "some"),
        ("defaults.apply_oversubscription", "maybe"),
        ("gpu.passthrough_vendors", "nvidia"),
        ("data_dir", "relative"),
        ("profile", "other"),
        ("server.url", "headroom.example"),
        ("server.url", "ftp://headroom.example"),
        ("server.url", "https://user@headroom.example"),
        ("server.url", "https://headroom.example:0"),
        ("server.url", "https://headroom.example:port"),
        ("report.interval", "0"),
        ("capacity.unknown", "1"),
        ("unknown", "1"),
    ],
)
def test_what_is_not_allowed_is_refused_in_one_line(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as in_file:
        settings({}, written(tmp_path, toml(key, text)))
    name = PREFIX + key.upper().replace(".", "__")
    with pytest.raises(ConfigurationError) as in_environment:
        settings({name: text})

    assert in_file.value.key == key
    assert "\n" not in str(in_file.value)
    assert repr(text) in str(in_file.value)
    assert in_environment.value.allowed == in_file.value.allowed


def test_ratios_below_one_are_allowed_where_hypervisors_allow_them() -> None:
    found = settings({"OVERSUB_DISK": "0.5", "OVERSUB_NETWORK": "0.5", "OVERSUB_DISK_IO": "0.5"})

    assert found.oversubscription_disk == Decimal("0.5")


@pytest.mark.parametrize(
    "text", ["[", "a = 1\na = 2", "[capacity]\ncpu = [1]", "data_dir = 1979-05-27"]
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError):
        settings({}, written(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        settings({}, tmp_path / "none.toml")
