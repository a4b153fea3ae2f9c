"""Removes what reservations left behind, and nothing else (spec hosts, B.11).

A database that was restored or is wrong does not know what is in use, so that it knows nothing of
a reservation is no reason to remove anything: it must have signed that it is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from headroom_host_agent.provision.ids import IdError, split_id
from headroom_host_agent.provision.stored import Artifact

log = logging.getLogger(__name__)
MOST_PER_RUN = 5
SHARE_PER_RUN = 5  # one of so many


class ServerKnowledge(StrEnum):
    """What the server says of a reservation."""

    LIVE = "live"
    GOING = "to be deleted"
    GONE = "gone, with a signed tombstone"
    UNKNOWN = "unknown to the server"
    NONE = "no answer"


class Fate(StrEnum):
    """What is done with an artefact."""

    KEEP = "keep"
    FLAG = "keep and flag"
    DELETE = "delete"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedArtifact:
    """An artefact and why it stays or goes."""

    artifact: Artifact
    fate: Fate
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a cleanup found and did.

    Attributes:
        removed: Names of what is gone.
        stopped: Why nothing was removed though something should be; empty otherwise.
    """

    findings: tuple[JudgedArtifact, ...]
    removed: tuple[str, ...] = ()
    stopped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a cleanup looks at and acts with.

    Attributes:
        registered: What the agent's own store knows it made.
        found: (kind, name) of everything that is there, of whatever origin.
        in_use: Whether something holds an artefact.
        ask: Id of a reservation -> the server's answer.
        remove: Removes an artefact and forgets it; raises when it cannot.
        needs_confirmation: Whether the store may have lost something.
    """

    registered: tuple[Artifact, ...]
    found: Iterable[tuple[str, str]]
    in_use: Callable[[Artifact], bool]
    ask: Callable[[str], ServerKnowledge]
    remove: Callable[[Artifact], None]
    needs_confirmation: bool = False


_OF_ANSWER: Mapping[ServerKnowledge, Fate] = {
    ServerKnowledge.LIVE: Fate.KEEP,
    ServerKnowledge.GOING: Fate.DELETE,
    ServerKnowledge.GONE: Fate.DELETE,
    ServerKnowledge.UNKNOWN: Fate.FLAG,
    ServerKnowledge.NONE: Fate.KEEP,
}


def cleanup_resources(host: Host, *, dry_run: bool, most: int = MOST_PER_RUN) -> Report:
    """Look at every artefact and remove what the server has let go.

    At most ``most`` and a fifth of all, but one always; when it were more, nothing is removed:
    an operator has to look.
    """
    findings = (*_foreign(host), *(_judge(host, artifact) for artifact in host.registered))
    for finding in findings:
        if finding.fate == Fate.FLAG:
            log.warning("%s stays: %s", finding.artifact.name, finding.reason)
    going = [finding.artifact for finding in findings if finding.fate == Fate.DELETE]
    if dry_run or not going:
        return Report(findings=findings)
    limit = min(most, max(1, len(host.registered) // SHARE_PER_RUN))
    if host.needs_confirmation:
        return _stopped(findings, "the store was damaged, and nobody confirmed what it holds now")
    if len(going) > limit:
        reason = f"{len(going)} of {len(host.registered)} would go, {limit} may in one run"
        return _stopped(findings, reason)
    return Report(findings=findings, removed=tuple(_removed(host, going)))


def _stopped(findings: tuple[JudgedArtifact, ...], reason: str) -> Report:
    log.error("nothing is cleaned up: %s", reason)
    return Report(findings=findings, stopped=reason)


def _removed(host: Host, going: Iterable[Artifact]) -> Iterable[str]:
    for artifact in going:
        try:
            host.remove(artifact)
        except Exception:
            log.exception("%s cannot be removed", artifact.name)
        else:
            yield artifact.name


def _foreign(host: Host) -> Iterable[JudgedArtifact]:
    ours = {(artifact.kind, artifact.name) for artifact in host.registered}
    for kind, name in sorted(set(host.found) - ours):
        reason = "not made by this agent" if _is_id(name) else "not our naming"
        artifact = Artifact(name=name, kind=kind, reservation_id="")
        yield JudgedArtifact(artifact=artifact, fate=Fate.SKIP, reason=reason)


def _judge(host: Host, artifact: Artifact) -> JudgedArtifact:
    try:
        if host.in_use(artifact):
            return JudgedArtifact(artifact=artifact, fate=Fate.KEEP, reason="in use")
        answer = host.ask(artifact.reservation_id)
    except Exception as error:
        log.exception("%s stays: it cannot be judged", artifact.name)
        reason = f"it cannot be judged: {error}"
        return JudgedArtifact(artifact=artifact, fate=Fate.KEEP, reason=reason)
    return JudgedArtifact(artifact=artifact, fate=_OF_ANSWER[answer], reason=answer.value)


def _is_id(name: str) -> bool:
    try:
        split_id(name)
    except IdError:
        return False
    return True
