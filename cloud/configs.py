"""The configuration files of every service, as text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cloud.layout import ADDRESS, PASSWORD, REGION, ComputeHost, Layout, compute_hosts

Options = Mapping[str, object]
INSIDE: Final = Path(__file__).resolve().parent / "inside"
CLIENT: Final = INSIDE.parents[1] / "clients" / "nova" / "headroom_nova"
_POOL: Final = {"max_pool_size": 10, "max_overflow": 40}
_MESSAGES: Final = {"heartbeat_timeout_threshold": 0, "rabbit_transient_quorum_queue": "false"}
_RETRIES: Final = {"connect_retries": 6, "status_code_retries": 12, "status_code_retry_delay": 5}
"""Of calls to Placement, as docs/operations.md recommends them."""
_OWN_FILTERS: Final = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
)


def ini(sections: Mapping[str, Options]) -> str:
    """Return sections as an INI file; an option with several values has a tuple of them."""
    lines: list[str] = []
    for name, options in sections.items():
        lines.append(f"[{name}]")
        for key, content in options.items():
            several = content if isinstance(content, tuple) else (content,)
            lines += [f"{key} = {one}" for one in several]
    return "\n".join(lines) + "\n"


def database_url(layout: Layout, name: str) -> str:
    """Return a database's address as SQLAlchemy spells it."""
    server = f"root:{PASSWORD}@{ADDRESS}:{layout.port('mysql')}"
    return f"mysql+pymysql://{server}/{name}?charset=utf8mb4"


def message_url(layout: Layout) -> str:
    """Return the address of RabbitMQ as oslo.messaging spells it."""
    return f"rabbit://mini:{PASSWORD}@{ADDRESS}:{layout.port('rabbit')}/"


def login(layout: Layout, user: str) -> dict[str, object]:
    """Return the options that a service logs in to Keystone with."""
    return {
        "auth_url": f"{layout.url('keystone')}/v3",
        "auth_type": "password",
        "username": user,
        "password": PASSWORD,
        "project_name": "service",
        "user_domain_name": "Default",
        "project_domain_name": "Default",
        "region_name": REGION,
        "valid_interfaces": "public",
    }


def token_check(layout: Layout, user: str) -> dict[str, object]:
    """Return the options that a service checks tokens of callers with."""
    return {
        **login(layout, user),
        "www_authenticate_uri": f"{layout.url('keystone')}/v3",
        "service_token_roles": "service",
        "service_token_roles_required": "true",
        "interface": "public",
    }


def policy_file(layout: Layout, service: str) -> Path:
    """Return where a service looks for access rules; a file that comes later is read at once."""
    return layout.etc / f"{service}-policy.yaml"


def _database(layout: Layout, name: str) -> Options:
    return {"connection": database_url(layout, name), **_POOL}


def keystone_conf(layout: Layout) -> Mapping[str, Options]:
    """Return Keystone's options; passwords are hashed cheaply, since every process logs in."""
    return {
        "DEFAULT": {"max_token_size": 1024},
        "database": _database(layout, "keystone"),
        "identity": {"password_hash_rounds": 4},
        "token": {"provider": "fernet", "expiration": 86400},
        "fernet_tokens": {"key_repository": layout.state / "fernet"},
        "credential": {"key_repository": layout.state / "credential"},
        "cache": {"enabled": "false"},  # its processes would not hear of each other's changes
        "oslo_policy": {"policy_file": policy_file(layout, "keystone")},
    }


def glance_conf(layout: Layout) -> Mapping[str, Options]:
    """Return Glance's options."""
    return {
        "DEFAULT": {
            "enabled_backends": "fs:file",
            "use_keystone_limits": "false",
            "enabled_import_methods": "[]",
        },
        "database": _database(layout, "glance"),
        "keystone_authtoken": token_check(layout, "glance"),
        "paste_deploy": {"flavor": "keystone"},
        "glance_store": {"default_backend": "fs"},
        "fs": {"filesystem_store_datadir": layout.state / "glance"},
        "os_glance_staging_store": {"filesystem_store_datadir": layout.state / "glance-staging"},
        "os_glance_tasks_store": {"filesystem_store_datadir": layout.state / "glance-tasks"},
    }


def neutron_conf(layout: Layout) -> Mapping[str, Options]:
    """Return Neutron's options: no network is ever made, Nova only asks for its extensions."""
    return {
        "DEFAULT": {
            "core_plugin": "ml2",
            "service_plugins": "",
            "auth_strategy": "keystone",
            "transport_url": message_url(layout),
            "state_path": layout.state / "neutron",
            "api_workers": 1,
            "rpc_workers": 0,
            "api_paste_config": layout.etc / "neutron" / "api-paste.ini",
            "notify_nova_on_port_status_changes": "false",
            "notify_nova_on_port_data_changes": "false",
        },
        "database": _database(layout, "neutron"),
        "keystone_authtoken": token_check(layout, "neutron"),
        "oslo_concurrency": {"lock_path": layout.state / "neutron"},
        "oslo_messaging_rabbit": _MESSAGES,
    }


def scheduler_options(*, asks_headroom: bool) -> Options:
    """Return the options of Nova's filters; Headroom is asked last and ranks."""
    if not asks_headroom:
        return {"host_subset_size": 3, "shuffle_best_same_weighed_hosts": "true"}
    return {
        "host_subset_size": 1,
        "enabled_filters": ",".join((*_OWN_FILTERS, "HeadroomFilter")),
        "available_filters": (
            "nova.scheduler.filters.all_filters",
            "headroom_nova.filters.HeadroomFilter",
        ),
        "weight_classes": ",".join(
            ("nova.scheduler.weights.all_weighers", "headroom_nova.weights.HeadroomWeigher")
        ),
    }


def nova_conf(layout: Layout, *, external_url: str) -> Mapping[str, Options]:
    """Return Nova's options, common to all its processes.

    Args:
        layout: Where everything is.
        external_url: Of Headroom's external scheduler; empty if it is not asked.
    """
    nova = login(layout, "nova")
    return {
        "DEFAULT": {
            "transport_url": message_url(layout),
            "my_ip": ADDRESS,
            "state_path": layout.state / "nova",
            "compute_driver": "headroom.Driver",
            "report_interval": 5,
            "service_down_time": 120,
            "allow_resize_to_same_host": "false",
            "vif_plugging_is_fatal": "false",
            "vif_plugging_timeout": 0,
            "instance_usage_audit": "false",
            "shelved_offload_time": 0,
            "cpu_allocation_ratio": 1.0,
            "ram_allocation_ratio": 1.0,
            "disk_allocation_ratio": 1.0,
            "default_thread_pool_size": 10,
            "sync_power_state_interval": -1,
            "rpc_response_timeout": 180,
            "resize_confirm_window": 0,
            "running_deleted_instance_poll_interval": 0,
            "heal_instance_info_cache_interval": -1,
            "bandwidth_poll_interval": 0,
        },
        "api": {"auth_strategy": "keystone"},
        "wsgi": {"api_paste_config": layout.etc / "api-paste.ini"},
        "api_database": _database(layout, "nova_api"),
        "database": _database(layout, "nova"),
        "keystone_authtoken": token_check(layout, "nova"),
        "service_user": {**nova, "send_service_user_token": "true"},
        "placement": {**nova, **_RETRIES},
        "neutron": nova,
        "glance": nova,
        "oslo_concurrency": {"lock_path": layout.state / "nova" / "lock"},
        "oslo_messaging_rabbit": _MESSAGES,
        "oslo_messaging_notifications": {"driver": "messagingv2"},
        "oslo_policy": {"policy_file": policy_file(layout, "nova")},
        "notifications": {
            "notification_format": "versioned",
            "notify_on_state_change": "vm_and_task_state",
        },
        "conductor": {"workers": 1},
        "scheduler": {
            "workers": 1,
            "limit_tenants_to_placement_aggregate": "true",
            "enable_isolated_aggregate_filtering": "true",
            "query_placement_for_image_type_support": "true",
            "image_metadata_prefilter": "true",
            "max_attempts": 5,
        },
        "filter_scheduler": scheduler_options(asks_headroom=bool(external_url)),
        "headroom": {"url": external_url, "auth_section": "placement"} if external_url else {},
        "quota": dict.fromkeys(
            ("instances", "cores", "ram", "server_groups", "server_group_members"), -1
        ),
        "vnc": {"enabled": "false"},
        "spice": {"enabled": "false"},
        "key_manager": {
            "backend": "nova.keymgr.conf_key_mgr.ConfKeyManager",
            "fixed_key": "00" * 32,
        },
    }


def compute_conf(layout: Layout, host: ComputeHost) -> Mapping[str, Options]:
    """Return the options of one nova-compute."""
    home = layout.state / "computes" / host.name
    return {
        "DEFAULT": {
            "host": host.name,
            "state_path": home,
            "cpu_allocation_ratio": host.shape.vcpu_ratio,
            "reserved_host_memory_mb": host.shape.reserved_memory_mib,
            "reserved_host_cpus": host.shape.reserved_vcpus,
        },
        "oslo_concurrency": {"lock_path": home / "lock"},
    }


def shape_record(host: ComputeHost) -> dict[str, object]:
    """Return what the driver reads of a host's hardware."""
    shape = host.shape
    return {
        "vcpus": shape.vcpus,
        "memory_mib": shape.memory_mib,
        "disk_gib": shape.disk_gib,
        "traits": list(shape.traits),
        "children": {suffix: dict(held) for suffix, held in shape.children.items()},
        "child_traits": list(shape.child_traits),
    }


def rabbit_conf(layout: Layout) -> str:
    """Return RabbitMQ's configuration."""
    return (
        f"listeners.tcp.1 = {ADDRESS}:{layout.port('rabbit')}\n"
        f"default_user = mini\ndefault_pass = {PASSWORD}\nloopback_users = none\n"
        "vm_memory_high_watermark.absolute = 1GB\ndisk_free_limit.absolute = 200MB\n"
        "log.console = true\nlog.console.level = warning\nlog.file = false\nheartbeat = 0\n"
    )


def write_configs(layout: Layout) -> None:
    """Write every file, and copy what the services' own packages and Nova's plug-ins bring."""
    for name in ("fernet", "credential", "glance", "glance-staging", "glance-tasks", "neutron"):
        (layout.state / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    (layout.state / "nova" / "lock").mkdir(parents=True, exist_ok=True)
    for package in ("glance", "neutron"):
        packaged = layout.venv / "etc" / package
        shutil.copytree(packaged, layout.etc / package, dirs_exist_ok=True)
    shutil.copy(layout.venv / "etc" / "nova" / "api-paste.ini", layout.etc / "api-paste.ini")
    _write(layout.etc / "keystone.conf", keystone_conf(layout))
    _write(layout.etc / "glance" / "glance-api.conf", glance_conf(layout))
    _write(layout.etc / "neutron" / "neutron.conf", neutron_conf(layout))
    layer2 = {
        "ml2": {
            "type_drivers": "local,vlan,flat",  # without vlan, ports fail until tables are mapped
            "tenant_network_types": "local",
            "mechanism_drivers": "",
        }
    }
    _write(layout.etc / "neutron" / "plugins" / "ml2" / "ml2_conf.ini", layer2)
    write_nova_conf(layout)
    for host in compute_hosts(layout.host_count):
        home = layout.state / "computes" / host.name
        home.mkdir(parents=True, exist_ok=True)
        (home / "shape.json").write_text(json.dumps(shape_record(host)), encoding="utf-8")
        _write(layout.etc / "hosts" / f"{host.name}.conf", compute_conf(layout, host))
    (packages,) = (layout.venv / "lib").glob("python3.*/site-packages")
    shutil.copy(INSIDE / "driver.py", packages / "nova" / "virt" / "headroom.py")
    shutil.copytree(CLIENT, packages / CLIENT.name, dirs_exist_ok=True)


def write_nova_conf(layout: Layout) -> None:
    """Write what all of Nova's processes read; an external address decides on the filters."""
    kept = layout.external_url_file
    external_url = kept.read_text(encoding="utf-8") if kept.exists() else ""
    _write(layout.etc / "nova.conf", nova_conf(layout, external_url=external_url))


def _write(path: Path, sections: Mapping[str, Options]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ini(sections), encoding="utf-8")
