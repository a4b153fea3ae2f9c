"""Say in one place which provider of Placement a host is: by its uuid, not by its name."""

from django.db import migrations, models
from django.db.models.expressions import F, Func

PROVIDER_UUID = """
CREATE FUNCTION hosts_provider_uuid(p_provider_uuid text, p_openstack_id text) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN coalesce(nullif(p_provider_uuid, ''), p_openstack_id)
                     ~* '^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$'
                THEN coalesce(nullif(p_provider_uuid, ''), p_openstack_id)::uuid END
$$
"""


class Migration(migrations.Migration):
    dependencies = [("hosts", "0012_log_of_changes")]

    operations = [
        migrations.RunSQL(PROVIDER_UUID, "DROP FUNCTION hosts_provider_uuid(text, text)"),
        migrations.AddIndex(
            model_name="host",
            index=models.Index(
                Func(
                    F("provider_uuid"),
                    F("openstack_id"),
                    function="hosts_provider_uuid",
                    output_field=models.UUIDField(),
                ),
                name="hosts_host_provider_idx",
            ),
        ),
    ]
