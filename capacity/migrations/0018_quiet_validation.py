"""Let validation stamp a user of a slot without calling the row changed.

Validation stamps every user of every failover slot twice an hour. As a change that made every
follower read all of them again, and moved each row to another page with an entry in every index.
"""

from __future__ import annotations

from django.db import migrations

TABLE = "capacity_reservationallocation"
TRIGGER = f"{TABLE}_track_change"
#: All but validated_at. changed_xid is among them for who restores a dump (docs/operations.md).
COLUMNS = (
    "id, changed_xid, created_at, updated_at, vm_uuid, state, memory_bytes, vcpus, since, "
    "confirmed_at, confirmed_host_id, reservation_id, vm_host_id, missing_since"
)
CREATE = (
    f"CREATE TRIGGER {TRIGGER} BEFORE INSERT OR UPDATE{{of}} ON {TABLE} "
    "FOR EACH ROW EXECUTE FUNCTION headroom_track_change()"
)


class Migration(migrations.Migration):
    dependencies = [("capacity", "0017_room_for_updates")]

    operations = [
        migrations.RunSQL(
            [f"DROP TRIGGER {TRIGGER} ON {TABLE}", CREATE.format(of=f" OF {COLUMNS}")],
            [f"DROP TRIGGER {TRIGGER} ON {TABLE}", CREATE.format(of="")],
        ),
        migrations.RunSQL(
            f"ALTER TABLE {TABLE} SET (fillfactor = 80)",
            f"ALTER TABLE {TABLE} RESET (fillfactor)",
        ),
    ]
