-- A VM that was forgotten and is listed again, on another host, loses the reservations that it had
-- there, as one does that moves.
CREATE OR REPLACE FUNCTION failover_vms_returned() RETURNS trigger LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_indexonlyscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    stale bigint[];
BEGIN
    stale := ARRAY(
        SELECT one.id
          FROM fresh
         CROSS JOIN LATERAL (SELECT id, vm_host_id FROM capacity_reservationallocation
                              WHERE vm_uuid = fresh.openstack_id OFFSET 0) AS one
         WHERE one.vm_host_id <> fresh.host_id
    );
    IF stale = '{}' THEN
        RETURN NULL;
    END IF;
    PERFORM FROM failover_failoverreservation
      WHERE reservation_id IN (
            SELECT reservation_id FROM capacity_reservationallocation WHERE id = ANY(stale))
      ORDER BY reservation_id FOR NO KEY UPDATE;
    UPDATE failover_failoverreservation AS held
       SET last_changed_at = now(), acknowledged_at = NULL, next_validation_at = now(),
           version = held.version + 1
      FROM capacity_forget_users(stale) AS gone(reservation_id)
     WHERE held.reservation_id = gone.reservation_id;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER hosts_instance_failover_return
    AFTER INSERT ON hosts_instance REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION failover_vms_returned();
