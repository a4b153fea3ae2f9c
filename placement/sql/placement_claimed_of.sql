-- What consumers hold of a tree of providers, from the sums that every write keeps in the inventories; no
-- row where they hold nothing.
-- Rows are found one by one by their keys (OFFSET 0 keeps it that way). The planner
-- puts this text in the place of a call.
CREATE OR REPLACE FUNCTION placement_claimed_of(p_root bigint)
RETURNS TABLE (memory_bytes bigint, vcpus bigint) LANGUAGE sql STABLE AS $$
SELECT coalesce(sum(given.used) FILTER (WHERE class.name = 'MEMORY_MB'), 0)::bigint * 1048576,
       coalesce(sum(given.used) FILTER (WHERE class.name <> 'MEMORY_MB'), 0)::bigint
  FROM (SELECT part.id FROM placement_provider AS part
         WHERE part.root_id = p_root OFFSET 0) AS part
  JOIN LATERAL (
       SELECT given.resource_class_id, given.used FROM placement_inventory AS given
        WHERE given.provider_id = part.id AND given.used > 0 OFFSET 0) AS given ON true
  JOIN LATERAL (
       SELECT class.name FROM placement_resource_class AS class
        WHERE class.id = given.resource_class_id
          AND class.name IN ('MEMORY_MB', 'VCPU', 'PCPU') OFFSET 0) AS class ON true
HAVING count(*) > 0
$$;
