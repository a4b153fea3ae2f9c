from django.db import migrations


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.RunSQL(
            "CREATE SEQUENCE placement_resource_class_custom AS integer START 10000",
            "DROP SEQUENCE placement_resource_class_custom",
        ),
    ]
