"""The chart: rendered by helm, valid for Kubernetes, safe, and with the alerts we test."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from config.environment import load_environment
from config.launcher.production import ROLES
from config.launcher.workers import PROCESSES
from config.queues import QUEUES
from tests.deploy.chart import (
    CASES,
    CHART,
    HELM,
    KUBECONFORM,
    ROOT,
    fingerprint,
    render,
    stored,
    with_fingerprint,
)
from tests.deploy.collect_schemas import SCHEMAS

Manifest = dict[str, Any]  # Any: YAML
RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yaml"))
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
LONGEST_SOON_TASK_SECONDS = 120


def manifests(case: str) -> list[Manifest]:
    text = stored(case).read_text(encoding="utf-8")
    return [one for one in yaml.safe_load_all(text) if one]


def of_kind(case: str, kind: str) -> dict[str, Manifest]:
    found = (one for one in manifests(case) if one["kind"] == kind)
    return {str(one["metadata"]["name"]): one for one in found}


def pods(case: str) -> Iterator[tuple[str, Manifest]]:
    """Yield the specification of every pod, by the name of what makes it."""
    for one in manifests(case):
        if one["kind"] in {"Deployment", "Job"}:
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]
        elif one["kind"] == "Pod":
            yield one["metadata"]["name"], one["spec"]


def container(spec: Manifest) -> Manifest:
    (only,) = spec["containers"]
    return dict(only)


def variables(spec: Manifest) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container(spec).get("env", [])}


@pytest.mark.parametrize("case", CASES)
def test_the_rendered_manifests_are_those_of_the_chart(case: str) -> None:
    """Without helm their digest says so: whoever changes the chart renders them anew."""
    kept = stored(case).read_text(encoding="utf-8")
    assert kept.startswith(f"# python -m tests.deploy.chart: {fingerprint()}\n")
    if HELM is not None:
        assert kept == with_fingerprint(render(*CASES[case]))


@pytest.mark.parametrize("case", CASES)
def test_kubernetes_knows_every_field(case: str) -> None:
    for one in manifests(case):
        schema = json.loads((SCHEMAS / f"{one['kind'].lower()}.json").read_text(encoding="utf-8"))
        jsonschema.validate(one, schema)


@pytest.mark.skipif(HELM is None or KUBECONFORM is None, reason="no helm and kubeconform here")
@pytest.mark.parametrize("case", CASES)
def test_kubeconform_and_helm_agree(case: str) -> None:
    place = str(SCHEMAS / "{{.ResourceKind}}.json")
    assert KUBECONFORM is not None
    assert HELM is not None
    for line in (
        [KUBECONFORM, "-strict", "-schema-location", place, str(stored(case))],
        [HELM, "lint", "--strict", str(CHART), *CASES[case]],
    ):
        done = subprocess.run(  # noqa: S603 - ours
            line, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(HELM is None, reason="no helm here")
@pytest.mark.parametrize(
    "wrong",
    [
        "web.processes=0",
        "workers.other.replicas=1",
        "settings.HEADROOM_ALLOWED_HOSTS=a",
        "settings.PASSWORD=a",
        "image.digest=latest",
        "web.terminationGracePeriodSeconds=5",
        "listener.replicas=-1",
        "unheard=1",
    ],
)
def test_values_that_mean_nothing_are_refused(wrong: str) -> None:
    with pytest.raises(AssertionError, match="values don't meet the specifications"):
        render("--set", wrong)


@pytest.mark.skipif(HELM is None, reason="no helm here")
@pytest.mark.parametrize(
    ("role", "needed"),
    [
        ("listener", "HEADROOM_LISTENER__TRANSPORT_URL_FILE"),
        ("bridge", "HEADROOM_BRIDGE__CLUSTERS"),
        ("hypervisors", "HEADROOM_HYPERVISORS__KUBECONFIG"),
    ],
)
def test_a_role_that_is_asked_for_needs_to_know_where_to(role: str, needed: str) -> None:
    with pytest.raises(AssertionError, match=needed):
        render("--set", f"{role}.enabled=true")


def test_each_role_has_a_deployment_where_it_is_asked_for() -> None:
    served = {
        tuple(container(spec)["args"][:2])
        for _, spec in pods("full")
        if container(spec).get("args", [])[:1] == ["serve"]
    }
    assert served == {("serve", role) for role in ROLES}


def test_only_the_listener_reaches_the_queue_of_nova() -> None:
    found = {
        name: {port["port"] for rule in one["spec"].get("egress", ()) for port in rule["ports"]}
        for name, one in of_kind("full", "NetworkPolicy").items()
    }
    assert found["headroom-listener"] == {5671, 5672}
    assert not found["headroom"] & found["headroom-listener"]
    spec = dict(pods("full"))["headroom-listener"]
    assert container(spec)["args"] == ["serve", "listener"]
    assert "headroom-listener" not in dict(pods("default"))


def test_polls_of_agents_and_nothing_else_go_to_who_holds_them() -> None:
    (rule,) = of_kind("full", "Ingress")["headroom-agents"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"]["name"] == "headroom-agents"
    for asked, is_poll in (
        ("/hosts/v1/4b6c8a4e/reservations", True),
        ("/hosts/v1/4b6c8a4e/reservations/42-1", False),
        ("/hosts/v1/4b6c8a4e/reservations/42-1/result", False),
        ("/hosts/v1/4b6c8a4e/heartbeat", False),
    ):
        assert bool(re.match(path["path"], asked)) is is_poll, asked
    assert "headroom-agents" not in of_kind("default", "Ingress")


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_confined(case: str) -> None:
    for name, spec in pods(case):
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        only = container(spec)
        assert only["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert only["resources"]["requests"].keys() == {"cpu", "memory"}, name
        assert "memory" in only["resources"]["limits"], name


@pytest.mark.parametrize("case", CASES)
def test_secrets_are_files_and_settings_are_known(case: str, tmp_path: Any) -> None:
    """Every variable is one that our own settings take; no secret is a variable or an argument."""
    secret = tmp_path / "secret"
    secret.write_text("x" * 40)
    for name, spec in pods(case):
        given = variables(spec)
        if not given:  # the pod of `helm test`
            continue
        files = {one for one, text in given.items() if text.startswith("/run/secrets/headroom/")}
        assert {"DATABASE_URL_FILE", "REDIS_URL_FILE", "HEADROOM_SECRET_KEY_FILE"} <= files, name
        assert not {"DATABASE_URL", "REDIS_URL", "HEADROOM_SECRET_KEY"} & given.keys(), name
        assert len(given) == len(container(spec)["env"]), "a variable is given twice"
        ours = {one: text for one, text in given.items() if one.startswith("HEADROOM_")}
        ours |= dict.fromkeys(files & ours.keys(), str(secret))
        if "HEADROOM_KEYSTONE__AUTH_URL" in ours:
            ours |= {"HEADROOM_KEYSTONE__USERNAME": "u", "HEADROOM_KEYSTONE__PROJECT_NAME": "p"}
        load_environment({**ours, "HEADROOM_POLICY_FILE": str(secret)})


def test_each_queue_has_its_worker_with_the_processes_of_the_launcher() -> None:
    found = {
        arguments[3]: int(arguments[5])
        for name, spec in pods("default")
        if (arguments := container(spec).get("args", []))[:2] == ["serve", "worker"] and name
    }
    assert found == PROCESSES
    assert found.keys() == set(QUEUES)


def test_probes_and_grace_are_those_of_the_manual() -> None:
    spec = dict(pods("default"))["headroom-web"]
    web = container(spec)
    assert web["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert web["readinessProbe"]["httpGet"]["path"] == "/readyz"
    for probe in ("livenessProbe", "readinessProbe"):
        assert {key: web[probe][key] for key in ("periodSeconds", "timeoutSeconds")} == {
            "periodSeconds": 10,
            "timeoutSeconds": 1,
        }
    assert spec["terminationGracePeriodSeconds"] >= 30 + 5  # its requests, and the pause before
    soon = dict(pods("default"))["headroom-worker-soon"]
    assert soon["terminationGracePeriodSeconds"] > LONGEST_SOON_TASK_SECONDS


def test_the_job_migrates_before_others_change_and_not_on_the_way_back() -> None:
    (job,) = of_kind("full", "Job").values()
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    spec = job["spec"]["template"]["spec"]
    assert container(spec)["args"] == ["manage", "migrate", "--no-input"]
    direct = "/run/secrets/headroom/database-url-without-pooler"
    assert variables(spec)["DATABASE_URL_FILE"] == direct
    assert "serviceAccountName" not in spec  # there is none yet at the first installation


@pytest.mark.skipif(HELM is None, reason="no helm here")
def test_alerts_and_dashboards_are_the_files_that_are_tested() -> None:
    """With the metric prefix that the settings choose, and the address of what to do."""
    chosen = [f"monitoring.{name}.enabled=true" for name in ("prometheusRules", "dashboards")]
    chosen.append("monitoring.prometheusRules.runbookUrl=https://git.example.org/headroom/")
    text = render(*CASES["full"], "--set", ",".join(chosen))
    made = [one for one in yaml.safe_load_all(text) if one]
    for one in made:
        schema = json.loads((SCHEMAS / f"{one['kind'].lower()}.json").read_text(encoding="utf-8"))
        jsonschema.validate(one, schema)
    rules = [one["spec"] for one in made if one["kind"] == "PrometheusRule"]
    assert rules == [
        yaml.safe_load(
            path.read_text(encoding="utf-8")
            .replace("cortex_", "capacity_")
            .replace("runbook_url: docs/", "runbook_url: https://git.example.org/headroom/docs/")
        )
        for path in RULES
    ]
    boards = [
        json.loads(text)
        for one in made
        if one["kind"] == "ConfigMap" and "dashboard" in one["metadata"]["name"]
        for text in one["data"].values()
    ]
    assert boards == [
        json.loads(path.read_text(encoding="utf-8").replace("cortex_", "capacity_"))
        for path in DASHBOARDS
    ]


def test_pods_are_found_by_service_monitors_budget_and_policies() -> None:
    labels = {
        name: one["spec"]["template"]["metadata"]["labels"]
        for name, one in of_kind("full", "Deployment").items()
    }

    def chosen(selector: dict[str, str]) -> set[str]:
        return {name for name, has in labels.items() if selector.items() <= has.items()}

    services = of_kind("full", "Service")
    assert {name: chosen(one["spec"]["selector"]) for name, one in services.items()} == {
        "headroom": {"headroom-web"},
        "headroom-agents": {"headroom-agents"},
    }
    (budget,) = of_kind("full", "PodDisruptionBudget").values()
    assert chosen(budget["spec"]["selector"]["matchLabels"]) == {"headroom-web"}
    policies = of_kind("full", "NetworkPolicy")
    everything = policies["headroom"]["spec"]["podSelector"]["matchLabels"]
    assert chosen(everything) == set(labels)
    scraped: set[str] = set()
    for monitor in of_kind("full", "PodMonitor").values():
        (expression,) = monitor["spec"]["selector"]["matchExpressions"]
        scraped |= {
            name
            for name, has in labels.items()
            if has["app.kubernetes.io/component"] in expression["values"]
        }
    assert scraped == set(labels)
