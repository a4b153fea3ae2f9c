from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("placement", "0002_initial")]

    operations = [
        # Inventory in use cannot be deleted; deferred, since the reshaper passes through such states.
        migrations.RunSQL(
            "ALTER TABLE placement_allocation ADD CONSTRAINT placement_allocation_inventory "
            "FOREIGN KEY (provider_id, resource_class_id) "
            "REFERENCES placement_inventory (provider_id, resource_class_id) "
            "DEFERRABLE INITIALLY DEFERRED",
            "ALTER TABLE placement_allocation DROP CONSTRAINT placement_allocation_inventory",
        ),
        # Rows that every allocation write updates: room for the new version on the same page.
        migrations.RunSQL(
            [
                "ALTER TABLE placement_inventory SET (fillfactor = 70)",
                "ALTER TABLE placement_consumer SET (fillfactor = 70)",
                "ALTER TABLE placement_provider SET (fillfactor = 70)",
            ],
            [
                "ALTER TABLE placement_inventory RESET (fillfactor)",
                "ALTER TABLE placement_consumer RESET (fillfactor)",
                "ALTER TABLE placement_provider RESET (fillfactor)",
            ],
        ),
    ]
