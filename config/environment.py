"""The one typed tree of deployment settings, read from the environment.

Every name starts with ``HEADROOM_``; nested names join with ``__``. A secret may come from a file
named by the same variable with ``_FILE`` appended. Unknown names and bad values raise
:class:`ConfigurationError` with one line that names the variable, the problem and what is allowed.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from bridge.conf import BridgeSettings
from commitments.conf import SyncSettings
from config.launcher.state import usual_state_directory
from config.sections import (
    CapacitySettings,
    DecisionSettings,
    FeedSettings,
    InFlightSettings,
    JournalSettings,
    LiquidSettings,
    MetricsSettings,
    OversubscriptionSettings,
    QuotaSettings,
    RetrySettings,
    SchedulerSettings,
    SlotSettings,
    UsageSettings,
)
from config.sections_agents import AgentSettings
from config.sections_failover import FailoverSettings
from config.sections_gateway import GatewaySettings
from config.sections_hypervisors import HypervisorSettings
from config.sections_listener import ListenerSettings
from config.sections_placement import PlacementSettings
from config.sections_web import (
    AdminSettings,
    DeadlineSettings,
    HeavySettings,
    OidcSettings,
    ReplicaSettings,
    WebSettings,
)
from journal.conf import AccessToken, KeystoneSettings, TracingSettings, with_duration
from webhooks.conf import WebhookSettings

PREFIX = "HEADROOM_"
NESTING = "__"
WEB_THREADS = "GRANIAN_BLOCKING_THREADS"
_FILES_THEMSELVES = frozenset({f"{PREFIX}TOKENS_FILE"})
_TOKENS = TypeAdapter(tuple[AccessToken, ...])
LOOPBACK_ADDRESSES = frozenset({"127.0.0.1", "::1", "localhost"})


class ConfigurationError(Exception):
    """The environment does not describe a deployment that may start."""


class Environment(BaseSettings):
    """All deployment settings with their defaults."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=NESTING, extra="ignore", frozen=True
    )

    debug: bool = Field(default=False, description="Development mode; never in production.")
    secret_key: SecretStr | None = Field(
        None, description="Django's signing key, at least 32 characters. Required unless DEBUG."
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        ("127.0.0.1", "localhost"), description="Host names served, comma separated."
    )
    csrf_trusted_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Origins the admin accepts forms from, comma separated."
    )
    replica_urls: SecretStr | None = Field(
        None,
        description="Streaming standbys of the database, as DATABASE_URL, comma separated: pages, "
        "lists, reports, metrics and what candidates are searched in are read from them.",
    )
    secure_cookies: bool = Field(
        default=True, description="Cookies over HTTPS only; off without TLS."
    )
    listen_address: str = Field("127.0.0.1", description="Address the web server binds.")
    auth: Literal["keystone", "token", "noauth"] = Field(
        "token",
        description="Who may call the APIs: holders of Keystone's tokens, holders of static "
        "tokens, or everybody (noauth, for development).",
    )
    tokens: tuple[AccessToken, ...] = Field(
        (),
        description='JSON list of {"token" or "token_sha256", "name", "roles", "project_id"} for '
        "HEADROOM_AUTH=token; project_id is what Placement's rules compare. For development: "
        "readable tokens belong in no environment, and changing them needs a restart.",
    )
    tokens_file: Path | None = Field(
        None,
        description="File with such a list, besides the one above; read again when it changes.",
    )
    policy_file: Path | None = Field(
        None, description="oslo.policy rules (YAML) that replace defaults; see running.md."
    )
    log_format: Literal["json", "console"] = Field("json", description="Shape of log lines.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Least severe level that is logged."
    )
    log_file: Path | None = Field(
        None, description="File that log lines are added to; none means standard error."
    )
    log_requests: bool = Field(
        default=True,
        description="Write a log line for every request of an API (Placement has a setting of its "
        "own).",
    )
    metric_prefix: str = Field(
        "cortex", pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", description="Prefix of our metric names."
    )
    metrics_token: SecretStr | None = Field(
        None,
        description="Bearer token that /metrics asks for, beside those of HEADROOM_TOKENS_FILE "
        "with the role metrics, which rotate; without any only HEADROOM_DEBUG opens it.",
    )
    allocation_source: Literal["instances", "placement", "hypervisor"] = Field(
        "instances",
        description="Where it is written what VMs take on hosts: the VM list, allocations of our "
        "Placement API, or Hypervisor objects (with HYPERVISORS__SYNC=import).",
    )
    process: Literal["web", "worker", "command"] = Field(
        "command",
        description="What this process is, which says how long its statements may take; "
        "`./run serve` sets it.",
    )
    lock_timeout_seconds: float = Field(
        3.0, gt=0, le=60, description="Longest wait for a zone or row lock."
    )
    lease_seconds: float = Field(
        30.0,
        ge=1,
        le=3600,
        description="How long work of a process that died stays its own before another does it: "
        "beat, and runs of several transactions. Living ones renew it.",
    )
    beat_max_age_seconds: int = Field(
        120, ge=10, description="Age of the last beat after which /statusz says that it is gone."
    )
    state_directory: Path | None = Field(
        None,
        description="Directory for files that processes share while they run, such as counters; "
        "none means one of the user's below that for temporary files.",
    )
    clock_warn_seconds: float = Field(
        5.0, gt=0, le=3600, description="Deviation from the database's clock that is logged."
    )
    clock_refuse_seconds: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="Deviation from the database's clock above which a process does no tasks.",
    )
    deadlines: DeadlineSettings = Field(default_factory=DeadlineSettings)
    heavy: HeavySettings = Field(default_factory=HeavySettings)
    admin: AdminSettings = Field(default_factory=AdminSettings)
    oidc: OidcSettings = Field(default_factory=OidcSettings)
    journal: JournalSettings = Field(default_factory=JournalSettings)
    keystone: KeystoneSettings = Field(default_factory=KeystoneSettings)
    sync: SyncSettings = Field(default_factory=SyncSettings)
    liquid: LiquidSettings = Field(default_factory=LiquidSettings)
    retry: RetrySettings = Field(default_factory=RetrySettings)
    usage: UsageSettings = Field(default_factory=UsageSettings)
    capacity: CapacitySettings = Field(default_factory=CapacitySettings)
    quota: QuotaSettings = Field(default_factory=QuotaSettings)
    slots: SlotSettings = Field(default_factory=SlotSettings)
    in_flight: InFlightSettings = Field(default_factory=InFlightSettings)
    feed: FeedSettings = Field(default_factory=FeedSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    decisions: DecisionSettings = Field(default_factory=DecisionSettings)
    oversubscription: OversubscriptionSettings = Field(default_factory=OversubscriptionSettings)
    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings)
    placement: PlacementSettings = Field(default_factory=PlacementSettings)
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    agents: AgentSettings = Field(default_factory=AgentSettings)
    listener: ListenerSettings = Field(default_factory=ListenerSettings)
    bridge: BridgeSettings = Field(default_factory=BridgeSettings)
    webhooks: WebhookSettings = Field(default_factory=WebhookSettings)
    hypervisors: HypervisorSettings = Field(default_factory=HypervisorSettings)
    failover: FailoverSettings = Field(default_factory=FailoverSettings)
    web: WebSettings = Field(default_factory=WebSettings)
    replicas: ReplicaSettings = Field(default_factory=ReplicaSettings)
    tracing: TracingSettings = Field(default_factory=TracingSettings)

    @field_validator(
        "lease_seconds",
        "lock_timeout_seconds",
        "beat_max_age_seconds",
        "clock_warn_seconds",
        "clock_refuse_seconds",
        mode="before",
    )
    @classmethod
    def _durations(cls, raw: Any, info: ValidationInfo) -> Any:  # Any: what the environment holds
        return with_duration(raw, info)

    @model_validator(mode="before")
    @classmethod
    def _split_lists(cls, raw: Any) -> Any:  # Any: pydantic hands over any mapping
        if isinstance(raw, dict):
            for name in ("allowed_hosts", "csrf_trusted_origins"):
                if isinstance(raw.get(name), str):
                    raw[name] = tuple(part.strip() for part in raw[name].split(",") if part.strip())
        return raw

    @property
    def replicas_of_database(self) -> tuple[str, ...]:
        """Addresses of the standbys."""
        told = "" if self.replica_urls is None else self.replica_urls.get_secret_value()
        return tuple(part.strip() for part in told.split(",") if part.strip())

    @property
    def shared_directory(self) -> Path:
        """The state directory that is set, or the usual one."""
        return self.state_directory or usual_state_directory()

    @property
    def plain_tokens(self) -> tuple[AccessToken, ...]:
        """Tokens of the variable that are not hashed."""
        return tuple(known for known in self.tokens if known.token is not None)

    @staticmethod
    def read_tokens(path: Path) -> tuple[AccessToken, ...]:
        """Return the tokens of a file.

        Raises:
            ValueError: it is no such list; the message does not show what is in it.
            OSError: it cannot be read.
        """
        text = path.read_text(encoding="utf-8")
        try:
            return _TOKENS.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{path}: {where}: {first['msg']}") from None

    @model_validator(mode="after")
    def _has_readable_tokens(self) -> Self:
        if self.tokens_file is not None:
            try:
                self.read_tokens(self.tokens_file)
            except OSError as error:
                raise ValueError(
                    f"tokens_file: cannot read {self.tokens_file}: {error.strerror}"
                ) from None
            except ValueError as error:
                raise ValueError(f"tokens_file: {error}") from None
        return self

    def web_deadlines(self) -> dict[str, float]:
        """Return for how long a thread of a web process may wait, in seconds, by setting.

        Bodies are not among them: they come in without a thread.
        """
        deadlines = {
            "lock_timeout_seconds": self.lock_timeout_seconds,
            "deadlines.web_statement_seconds": self.deadlines.web_statement_seconds,
            "deadlines.web_lock_seconds": self.deadlines.web_lock_seconds,
            "deadlines.web_idle_transaction_seconds": self.deadlines.web_idle_transaction_seconds,
            "heavy.deadline_seconds": self.heavy.deadline_seconds,
            "liquid.change_timeout_seconds": self.liquid.change_timeout_seconds,
        }
        if self.auth == "keystone":
            deadlines["keystone.timeout_seconds"] = self.keystone.timeout_seconds
        if self.gateway.upstream_url:
            deadlines["gateway.timeout_seconds"] = self.gateway.timeout_seconds
        if self.oidc.is_on:
            deadlines["oidc.timeout_seconds"] = self.oidc.timeout_seconds
        return deadlines

    @property
    def stuck_seconds(self) -> float:
        """After how long without a finished or idle thread a web process counts as stuck."""
        return self.web.stuck_seconds or 2 * max(self.web_deadlines().values())

    @model_validator(mode="after")
    def _probes_spare_the_healthy(self) -> Self:
        name, longest = max(self.web_deadlines().items(), key=lambda item: item[1])
        if self.stuck_seconds <= longest:
            raise ValueError(
                f"web.stuck_seconds: {self.web.stuck_seconds:g} is not above {name} ({longest:g}): "
                "/livez would fail while requests may still wait"
            )
        return self

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.secret_key is None:
            if not self.debug:
                raise ValueError("secret_key: is required unless HEADROOM_DEBUG is on")
        elif len(self.secret_key.get_secret_value()) < 32 and not self.debug:  # noqa: PLR2004
            raise ValueError("secret_key: needs at least 32 characters")
        if self.auth == "noauth" and not (self.debug and self.listen_address in LOOPBACK_ADDRESSES):
            raise ValueError(
                "auth: noauth is for development: it needs HEADROOM_DEBUG "
                "and a loopback address to listen on"
            )
        if self.auth == "keystone" and not self.keystone.is_complete:
            raise ValueError(
                "auth: keystone needs KEYSTONE__AUTH_URL, and KEYSTONE__USERNAME, "
                "KEYSTONE__PASSWORD and KEYSTONE__PROJECT_NAME, or an application credential"
            )
        if self.hypervisors.sync != "import":
            if self.allocation_source == "hypervisor":
                raise ValueError("allocation_source: hypervisor needs HYPERVISORS__SYNC=import")
        elif "allocation" in self.hypervisors.write_back and self.allocation_source != "placement":
            raise ValueError(
                "hypervisors__write_back: allocation needs ALLOCATION_SOURCE=placement: nobody "
                "else here knows what VMs take"
            )
        elif self.placement.host_capacity:
            raise ValueError(
                "placement__host_capacity: with HYPERVISORS__SYNC=import Hypervisor objects say "
                "what hosts have"
            )
        return self

    @model_validator(mode="after")
    def _sources_agree(self) -> Self:
        placement = self.placement
        if not placement.host_providers:
            needing = {
                "allocation_source: placement": self.allocation_source == "placement",
                "placement__host_capacity: it": placement.host_capacity,
                "placement__hide_fully_held: it": placement.hide_fully_held,
            }
            for name, is_chosen in needing.items():
                if is_chosen:
                    raise ValueError(f"{name} needs PLACEMENT__HOST_PROVIDERS")
        if not self.gateway.keeps_allocations:
            elsewhere = {
                "allocation_source: placement": self.allocation_source == "placement",
                "placement__host_capacity: it": placement.host_capacity,
            }
            for name, is_chosen in elsewhere.items():
                if is_chosen:
                    raise ValueError(f"{name} needs allocations to be local in GATEWAY__MODES")
        if placement.host_capacity and placement.host_inventories == "host":
            raise ValueError(
                "placement__host_capacity: it takes what nova-compute reports, which "
                "PLACEMENT__HOST_INVENTORIES=host refuses"
            )
        return self


def setting_names(model: type[BaseModel] = Environment, prefix: str = PREFIX) -> Iterator[str]:
    """Yield every environment name the tree knows, nested ones included."""
    for name, field in model.model_fields.items():
        full = f"{prefix}{name.upper()}"
        yield full
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_names(field.annotation, full + NESTING)
        elif _is_secret(field):
            yield f"{full}_FILE"


def secret_files() -> set[str]:
    """Return the names that may stand for others, as files with a secret in them."""
    known = set(setting_names())
    ending = "_FILE"
    named = {name for name in known if name.endswith(ending) and name[: -len(ending)] in known}
    return named - _FILES_THEMSELVES


def _is_secret(field: FieldInfo) -> bool:
    return field.annotation is SecretStr or SecretStr in get_args(field.annotation)


def load_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read and check the deployment settings.

    Args:
        environ: The variables to read; the process environment when left out.

    Raises:
        ConfigurationError: a ``HEADROOM_`` name is unknown or a value is not allowed; one line.
    """
    variables = dict(os.environ if environ is None else environ)
    known = set(setting_names())
    files = secret_files()
    for name in sorted(variables):
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f", did you mean {close[0]}?" if close else ""
            raise ConfigurationError(
                f"{name}: unknown setting{hint} (all are in docs/configuration.md)"
            )
    for name in sorted(known & variables.keys()):
        target = name.removesuffix("_FILE")
        if name in files:
            path = variables.pop(name)
            try:
                variables[target] = Path(path).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ConfigurationError(f"{name}: cannot read {path}: {error.strerror}") from error
    parsed = _parse(variables)
    _check_threads(parsed, variables.get(WEB_THREADS, ""))
    return parsed


def _check_threads(parsed: Environment, threads: str) -> None:
    """Check that some threads of a web process never wait for Keystone."""
    waiting = parsed.keystone.most_waiting
    if parsed.auth == "keystone" and threads.isdecimal() and int(threads) <= waiting:
        raise ConfigurationError(
            f"HEADROOM_KEYSTONE__MOST_WAITING: {waiting} must be below {WEB_THREADS} ({threads})"
        )


def _parse(variables: Mapping[str, str]) -> Environment:
    saved = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        return Environment()
    except ValidationError as error:
        raise ConfigurationError(_one_line(error)) from error
    except Exception as error:  # pydantic-settings wraps undecodable JSON in its own error
        if type(error).__name__ != "SettingsError":
            raise
        cause = f": {error.__cause__}" if error.__cause__ else ""
        raise ConfigurationError(f"{error}{cause}".replace("\n", " ")) from error
    finally:
        os.environ.clear()
        os.environ.update(saved)


def _one_line(error: ValidationError) -> str:
    parts = []
    for item in error.errors(include_input=False, include_url=False):
        where = NESTING.join(str(part) for part in item["loc"]).upper()
        text = item["msg"].removeprefix("Value error, ")
        if not where:
            head, colon, rest = text.partition(": ")
            where, text = (head.upper(), rest) if colon else ("", text)
        parts.append(f"{PREFIX}{where}: {text}")
    return "; ".join(parts)
