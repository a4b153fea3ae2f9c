-- Sums up the rows of one project; returns how many went. Under the lock that sums up those of all, but
-- it waits for nobody: none go where it is not free, since then another run sums up just now.
CREATE OR REPLACE FUNCTION placement_fold_usage_of(p_project text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_folded bigint;
BEGIN
    BEGIN
        LOCK TABLE placement_project_usage IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN 0;
    END;
    WITH gone AS (
        DELETE FROM placement_project_usage u
         WHERE u.project_id = (SELECT p.id FROM placement_project p WHERE p.external_id = p_project)
        RETURNING u.*),
    kept AS (
        INSERT INTO placement_project_usage (project_id, user_id, type_id, resource_class_id, used)
        SELECT project_id, user_id, type_id, resource_class_id, sum(used) FROM gone
         GROUP BY project_id, user_id, type_id, resource_class_id HAVING sum(used) <> 0)
    SELECT count(*) INTO v_folded FROM gone;
    RETURN v_folded;
END
$$;
