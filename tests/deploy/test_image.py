"""The image's steps, done without a container daemon, and what compose.yaml makes of the image."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from config.environment import load_environment
from config.launcher.addresses import NAMES
from config.launcher.environment import fingerprint
from config.launcher.places import Checkout, this_checkout
from config.launcher.production import ROLES
from core.releases import own_version
from tests.e2e.processes import process_environment

ROOT = this_checkout().root
VERSION = "9.8.7.6"
BUILT = "/opt/headroom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An instruction of the Dockerfile, and the number of its stage."""

    stage: int
    word: str
    rest: str


def steps() -> list[Step]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.M)
    found, stage = [], -1
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        stage += word == "FROM"
        if word:
            found.append(Step(stage=stage, word=word, rest=rest.strip()))
    return found


def of_stage(stage: int, word: str) -> list[str]:
    return [step.rest for step in steps() if (step.stage, step.word) == (stage, word)]


def context() -> Iterator[Path]:
    """Yield what .dockerignore lets in: names at the top, without what is compiled."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("!"):
            yield ROOT / line[1:]


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """Do the steps of the first stage; packages are those of our environment."""
    place = tmp_path / "headroom"
    (place / ".local").mkdir(parents=True)
    allowed = [str(path.relative_to(ROOT)) for path in context()]
    for step in steps():
        if step.stage != 0:
            continue
        if step.word == "COPY":
            *sources, target = step.rest.split()
            directory = place / target / ("" if target.endswith("/") else ".")
            is_all = sources == ["."]
            for source in allowed if is_all else sources:
                copy(ROOT / source, directory, source if is_all else "")
        elif step.word == "RUN":
            link_environment(Checkout(root=place))
            subprocess.run(  # noqa: S602 - the Dockerfile's
                step.rest,
                shell=True,
                cwd=place,
                env={"PATH": os.environ["PATH"], "VERSION": VERSION, "HOME": "/nonexistent"},
                check=True,
            )
    return place


def link_environment(checkout: Checkout) -> None:
    """Make the image's environment of what is in ours, so that nothing has to be fetched."""
    checkout.venv.mkdir(exist_ok=True)
    for path in this_checkout().venv.iterdir():
        if path.suffix != ".json" and not (checkout.venv / path.name).exists():
            (checkout.venv / path.name).symlink_to(path)
    stamp = {"runtime": fingerprint(checkout, "runtime")}
    (checkout.venv / "headroom-requirements.json").write_text(json.dumps(stamp))


def copy(source: Path, directory: Path, name: str) -> None:
    """Copy as COPY does: a file into a directory, of a directory what is in it, under a name."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    if source.is_dir():
        shutil.copytree(source, directory / name, ignore=ignored, dirs_exist_ok=True, symlinks=True)
    else:
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, directory / source.name)


def test_the_context_is_the_product_and_no_more() -> None:
    named = {str(path.relative_to(ROOT)) for path in context()}
    assert all((ROOT / name).exists() for name in named)
    tracked = subprocess.run(
        ["git", "ls-files"],  # noqa: S607 - git of the path
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    if not tracked:
        pytest.skip("no git here: what belongs into the image is NOT compared")
    tops = {name.partition("/")[0] for name in tracked}
    needed = {name for name in tops if (ROOT / name / "apps.py").exists()}
    assert needed | {"clients/agent"} <= named
    assert not {"tests", "docs", "deploy", "benchmarks"} & named


@pytest.mark.django_db(transaction=True)
def test_the_built_code_starts_on_a_database(build: Path, tmp_path: Path) -> None:
    assert f'version = "{VERSION}"' in (build / "pyproject.toml").read_text()
    assert list((build / "journal/__pycache__").glob("health.*.pyc"))
    given = process_environment(tmp_path)
    addresses = {f"{name}_FILE": tmp_path / name for name in NAMES}
    for name in NAMES:
        addresses[f"{name}_FILE"].write_text(given.pop(name))
    given |= {name: str(path) for name, path in addresses.items()}

    def run(*arguments: str) -> str:
        done = subprocess.run(  # noqa: S603 - ours
            [sys.executable, *arguments],
            cwd=build,
            env=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("run", "manage", "migrate", "--check")
    loading = "import config.wsgi; from config.celery_app import app"
    listing = "app.loader.import_default_modules(); print(len(app.tasks))"
    assert int(run("-c", f"{loading}; {listing}").split()[-1]) > len(ROLES)
    assert own_version() != VERSION


def test_the_image_runs_as_nobody_in_particular() -> None:
    (user,) = of_stage(1, "USER")
    assert user == "10001:10001"
    assert of_stage(1, "ENTRYPOINT") == ['["./run"]']
    assert of_stage(1, "COPY") == [f"--from=build {BUILT} {BUILT}"]  # root's: nobody writes there
    assert of_stage(0, "WORKDIR") == of_stage(1, "WORKDIR") == [BUILT]
    (variables,) = of_stage(1, "ENV")
    given = dict(one.split("=", 1) for one in shlex.split(variables))
    load_environment({**given, "HEADROOM_SECRET_KEY": "k" * 32})


def compose() -> dict[str, Any]:  # Any: YAML
    return dict(yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8")))


def test_compose_is_valid_and_starts_every_role_after_the_migrations() -> None:
    schema = (ROOT / "tests" / "data" / "compose-spec.json").read_text(encoding="utf-8")
    jsonschema.Draft202012Validator(json.loads(schema)).validate(compose())
    services = compose()["services"]
    served = {tuple(one.get("command", ())): one for one in services.values() if "build" in one}
    for role in ROLES:
        service = served["serve", role]
        assert service["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["healthcheck"]["test"][:2] == ["CMD", "python3"]


def test_settings_of_compose_are_known() -> None:
    given = compose()["services"]["web"]["environment"]
    plain = {
        name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", text)
        for name, text in given.items()
        if name.startswith("HEADROOM_")
    }
    tokens = load_environment(plain).tokens
    assert [token.name for token in tokens] == ["try-out"]
