"""Rendering the chart. ``python -m tests.deploy.chart`` writes the checked-in manifests anew."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from config.launcher.places import this_checkout

ROOT = this_checkout().root
CHART = ROOT / "deploy" / "helm" / "headroom"
RENDERED = ROOT / "tests" / "data" / "chart"
HELM = shutil.which("helm")
KUBECONFORM = shutil.which("kubeconform")
#: Values beside the chart's own, by the name of the rendered file.
CASES: dict[str, tuple[str, ...]] = {
    "default": (),
    "full": ("--values", str(RENDERED / "full.values.yaml")),
}


def fingerprint() -> str:
    """Return a digest of chart and values; alerts and dashboards are not in what is kept."""
    digest = hashlib.sha256((RENDERED / "full.values.yaml").read_bytes())
    for path in sorted(CHART.rglob("*")):
        if path.is_file() and "files" not in path.relative_to(CHART).parts:
            digest.update(str(path.relative_to(CHART)).encode() + path.read_bytes())
    return digest.hexdigest()


def render(*arguments: str) -> str:
    """Return what helm makes of the chart."""
    assert HELM is not None
    line = [HELM, "template", "headroom", str(CHART), "--namespace", "headroom"]
    done = subprocess.run(  # noqa: S603 - ours
        [*line, "--kube-version", "1.33.0", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def stored(case: str) -> Path:
    """Return where a rendered case is kept."""
    return RENDERED / f"{case}.yaml"


def with_fingerprint(text: str) -> str:
    """Return rendered manifests as they are kept."""
    return f"# python -m tests.deploy.chart: {fingerprint()}\n{text}"


if __name__ == "__main__":
    for case, values in CASES.items():
        stored(case).write_text(with_fingerprint(render(*values)), encoding="utf-8")
