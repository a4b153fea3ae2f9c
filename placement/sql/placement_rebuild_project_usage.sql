-- Sums up anew what projects use (spec placement, 5.8). The lock lets writers go on; in a statement
-- of its own it lets the next one see all that another run left.
CREATE OR REPLACE FUNCTION placement_rebuild_project_usage() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE placement_project_usage IN SHARE UPDATE EXCLUSIVE MODE;
    WITH gone AS (DELETE FROM placement_project_usage)
    INSERT INTO placement_project_usage (project_id, user_id, type_id, resource_class_id, used)
    SELECT k.project_id, k.user_id, k.type_id, o.resource_class_id,
           CASE WHEN grouping(o.resource_class_id) = 1 THEN count(DISTINCT o.consumer_id)
                ELSE sum(o.used) END
      FROM placement_allocation o JOIN placement_consumer k ON k.id = o.consumer_id
     GROUP BY GROUPING SETS ((k.project_id, k.user_id, k.type_id, o.resource_class_id),
                             (k.project_id, k.user_id, k.type_id));
END
$$;
