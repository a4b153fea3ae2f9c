"""Locking consumers ends, whatever the request names and others do (spec placement, 9.3)."""

from importlib import import_module

from django.db import migrations

before = import_module("placement.migrations.0005_allocation_functions")

ROUNDS = 8
ENDLESS = """    LOOP
        INSERT INTO placement_consumer"""
BOUNDED = f"""    FOR v_round IN 1..{ROUNDS} LOOP
        INSERT INTO placement_consumer"""
OFTEN = """        EXIT WHEN v_locked = cardinality(c_uuid);
    END LOOP;
"""
ONCE = """        IF v_locked = v_named THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
        MESSAGE = 'consumers were deleted by others whenever they were made';
"""
DECLARED = """    v_locked integer;
BEGIN
"""
COUNTED = """    v_locked integer;
    v_named integer := (SELECT count(DISTINCT uuid) FROM unnest(c_uuid) AS uuid);
BEGIN
"""


def changed(function, *changes):
    for old, new in changes:
        if function.count(old) != 1:
            raise AssertionError(old)
        function = function.replace(old, new)
    return function.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


LOCK_CONSUMERS = changed(
    before.LOCK_CONSUMERS, (DECLARED, COUNTED), (ENDLESS, BOUNDED), (OFTEN, ONCE)
)


class Migration(migrations.Migration):
    dependencies = [("placement", "0010_changes_function")]

    operations = [
        migrations.RunSQL(
            LOCK_CONSUMERS,
            before.LOCK_CONSUMERS.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"),
        )
    ]
