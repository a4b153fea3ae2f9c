"""Each VM in a reservation has two index entries less, one in a slot of a commitment three."""

from django.db import migrations, models

RULE = "capacity_reservationallocation_vm_host_unique"
BUILT = "capacity_reservationallocation_vm_host_built"
BUILD = f"""
CREATE UNIQUE INDEX CONCURRENTLY {BUILT} ON capacity_reservationallocation
    (reservation_id, vm_host_id) WHERE vm_host_id IS NOT NULL
"""
PUT_IN_PLACE = f"""
ALTER TABLE capacity_reservationallocation DROP CONSTRAINT IF EXISTS {RULE};
DROP INDEX IF EXISTS {RULE};
ALTER INDEX {BUILT} RENAME TO {RULE}
"""


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("capacity", "0031_parts_of_group_names")]

    operations = [
        migrations.AlterField(
            model_name="reservationallocation",
            name="reservation",
            field=models.ForeignKey(
                db_index=False,
                on_delete=models.deletion.CASCADE,
                related_name="allocations",
                to="capacity.reservation",
            ),
        ),
        migrations.RunSQL(
            "DROP INDEX CONCURRENTLY IF EXISTS"
            " capacity_reservationallocation_vm_uuid_9b15cd37_like",
            migrations.RunSQL.noop,
        ),
        # The rule holds at each instant, and a migration that was killed goes on.
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveConstraint(model_name="reservationallocation", name=RULE),
                migrations.AddConstraint(
                    model_name="reservationallocation",
                    constraint=models.UniqueConstraint(
                        fields=["reservation", "vm_host"],
                        condition=models.Q(vm_host__isnull=False),
                        name=RULE,
                    ),
                ),
            ],
            database_operations=[
                migrations.RunSQL(
                    [
                        f"DROP INDEX CONCURRENTLY IF EXISTS {BUILT}",
                        BUILD,
                        PUT_IN_PLACE,
                    ],
                    migrations.RunSQL.noop,
                )
            ],
        ),
    ]
