"""Rules of slots and rooms say the same in fewer words: the database reads them for each write."""

from django.db import migrations, models
from django.db.models.functions import Least
from django.db.models.lookups import GreaterThanOrEqual

from core.conditions import OneOf

ROOM = (
    "committed_memory_bytes",
    "committed_vcpus",
    "failover_memory_bytes",
    "failover_vcpus",
    "in_flight_memory_bytes",
    "in_flight_vcpus",
    "allocated_memory_bytes",
    "allocated_vcpus",
)
SLOT = ("memory_bytes", "vcpus", "blocked_memory_bytes", "blocked_vcpus")
KINDS = ("committed", "failover", "in_flight")
DOMAINS = ("nova", "cinder", "manila", "machines", "pods")
INTENTS = (
    "",
    "unknown",
    "create",
    "rebuild",
    "resize",
    "live_migration",
    "evacuate",
    "reserve_for_failover",
    "reuse_failover_reservation",
    "reserve_for_committed_resource",
    "capacity_probe",
)


def same_rule(model, name, condition, check):
    """Put a rule in the place of one of the same name, at once; rows are looked at afterwards."""
    table = f"capacity_{model}"
    put = f"ADD CONSTRAINT {name} CHECK ({check})"
    return migrations.SeparateDatabaseAndState(
        state_operations=[
            migrations.RemoveConstraint(model_name=model, name=name),
            migrations.AddConstraint(
                model_name=model,
                constraint=models.CheckConstraint(condition=condition, name=name),
            ),
        ],
        database_operations=[
            migrations.RunSQL(
                [
                    f"ALTER TABLE {table} DROP CONSTRAINT {name}, {put} NOT VALID",
                    f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}",
                ],
                migrations.RunSQL.noop,
            )
        ],
    )


def one_of(field, words):
    """Return a condition and its text."""
    array = ",".join(word or '""' for word in words)
    return OneOf(field, words), f"{field} = ANY ('{{{array}}}'::text[])"


def none_negative(fields):
    """Return a condition and its text."""
    return GreaterThanOrEqual(Least(*fields), 0), f"least({', '.join(fields)}) >= 0"


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("capacity", "0032_fewer_indexes")]

    operations = [
        same_rule("hostcapacity", "capacity_hostcapacity_not_negative", *none_negative(ROOM)),
        same_rule("reservation", "capacity_reservation_not_negative", *none_negative(SLOT)),
        same_rule("reservation", "capacity_reservation_kind_known", *one_of("kind", KINDS)),
        same_rule(
            "reservation",
            "capacity_reservation_scheduling_domain_known",
            *one_of("scheduling_domain", DOMAINS),
        ),
        same_rule("reservation", "capacity_reservation_intent_known", *one_of("intent", INTENTS)),
    ]
