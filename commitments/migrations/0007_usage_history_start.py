from django.db import migrations

# Assignments from before the history begin where they were made.
OPEN_EXISTING = """
INSERT INTO commitments_assignmentperiod
       (vm_uuid, resource_type, commitment_uuid, project_id, valid_from)
SELECT held.vm_uuid, held.resource_type, owner.commitment_uuid, owner.project_id, held.created_at
  FROM commitments_instanceassignment AS held
  JOIN commitments_commitment AS owner ON owner.id = held.commitment_id
"""


class Migration(migrations.Migration):
    dependencies = [("commitments", "0006_usage_triggers")]

    operations = [migrations.RunSQL(OPEN_EXISTING, migrations.RunSQL.noop)]
