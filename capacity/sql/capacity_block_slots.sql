-- Writes what reservations block now. Returns where each one that changed is, and by how much it
-- blocks more. How statements are planned is its caller's business.
CREATE OR REPLACE FUNCTION capacity_block_slots(p_slots bigint[])
RETURNS TABLE (
    target_host_id bigint, confirmed_host_id bigint, memory_bytes bigint, vcpus bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
UPDATE capacity_reservation AS held
   SET blocked_memory_bytes = wanted.memory_bytes, blocked_vcpus = wanted.vcpus
  FROM capacity_wanted_blocks() AS wanted
 WHERE wanted.id = ANY(p_slots) AND held.id = wanted.id
   AND (wanted.blocked_memory_bytes, wanted.blocked_vcpus)
       IS DISTINCT FROM (wanted.memory_bytes, wanted.vcpus)
RETURNING wanted.target_host_id, wanted.confirmed_host_id,
          wanted.memory_bytes - wanted.blocked_memory_bytes, wanted.vcpus - wanted.blocked_vcpus;
END
$$;
