-- Sums up the rows of owners with more than p_most; returns how many went. Its lock is that of
-- placement_rebuild_project_usage.
CREATE OR REPLACE FUNCTION placement_fold_project_usage(p_most bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_folded bigint;
BEGIN
    LOCK TABLE placement_project_usage IN SHARE UPDATE EXCLUSIVE MODE;
    WITH crowded AS MATERIALIZED (
        SELECT project_id, user_id FROM placement_project_usage
         GROUP BY project_id, user_id HAVING count(*) > p_most),
    gone AS (
        DELETE FROM placement_project_usage u USING crowded c
         WHERE u.project_id = c.project_id AND u.user_id = c.user_id
        RETURNING u.*),
    kept AS (
        INSERT INTO placement_project_usage (project_id, user_id, type_id, resource_class_id, used)
        SELECT project_id, user_id, type_id, resource_class_id, sum(used) FROM gone
         GROUP BY project_id, user_id, type_id, resource_class_id HAVING sum(used) <> 0)
    SELECT count(*) INTO v_folded FROM gone;
    RETURN v_folded;
END
$$;
