-- Consumers named by a write exist afterwards and are locked (spec placement, 9.3). One that this transaction made
-- has generation 0, every other one at least 1. Ends, whatever the request names and others do.
CREATE OR REPLACE FUNCTION placement_lock_consumers(
    c_uuid uuid[], c_project text[], c_user text[], c_type text[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_locked integer;
    v_named integer := (SELECT count(DISTINCT uuid) FROM unnest(c_uuid) AS uuid);
BEGIN
    INSERT INTO placement_project (external_id)
    SELECT DISTINCT name FROM unnest(c_project) AS name
     WHERE NOT EXISTS (SELECT FROM placement_project p WHERE p.external_id = name)
     ORDER BY name
        ON CONFLICT DO NOTHING;
    INSERT INTO placement_user (external_id)
    SELECT DISTINCT name FROM unnest(c_user) AS name
     WHERE NOT EXISTS (SELECT FROM placement_user u WHERE u.external_id = name)
     ORDER BY name
        ON CONFLICT DO NOTHING;
    IF c_type IS NOT NULL THEN
        INSERT INTO placement_consumer_type (name)
        SELECT DISTINCT name FROM unnest(c_type) AS name
         WHERE NOT EXISTS (SELECT FROM placement_consumer_type t WHERE t.name = name.name)
         ORDER BY name
            ON CONFLICT DO NOTHING;
    END IF;
    FOR v_round IN 1..8 LOOP
        INSERT INTO placement_consumer (uuid, project_id, user_id, type_id)
        SELECT c.uuid, p.id, u.id, t.id
          FROM unnest(c_uuid, c_project, c_user, coalesce(c_type, array_fill(NULL::text, ARRAY[cardinality(c_uuid)])))
            AS c (uuid, project, owner, type)
          JOIN placement_project p ON p.external_id = c.project
          JOIN placement_user u ON u.external_id = c.owner
          LEFT JOIN placement_consumer_type t ON t.name = c.type
         WHERE NOT EXISTS (SELECT FROM placement_consumer k WHERE k.uuid = c.uuid)
         ORDER BY c.uuid
            ON CONFLICT (uuid) DO NOTHING;
        PERFORM FROM placement_consumer k WHERE k.uuid = ANY (c_uuid) ORDER BY k.uuid FOR UPDATE;
        GET DIAGNOSTICS v_locked = ROW_COUNT;
        -- A consumer that another transaction deleted while we waited for it is made anew.
        IF v_locked = v_named THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
        MESSAGE = 'consumers were deleted by others whenever they were made';
END
$$;
