-- A VM that was recorded on another host loses its reservations in the same transaction; slots are
-- locked before their users.
CREATE OR REPLACE FUNCTION failover_vm_moved() RETURNS trigger LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_indexonlyscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    held_ids bigint[];
    stale bigint[];
BEGIN
    held_ids := ARRAY(
        SELECT one.reservation_id
          FROM (SELECT reservation_id, vm_host_id FROM capacity_reservationallocation
                 WHERE vm_uuid = NEW.openstack_id OFFSET 0) AS one
         WHERE one.vm_host_id <> NEW.host_id
    );
    IF held_ids = '{}' THEN
        RETURN NULL;
    END IF;
    PERFORM FROM failover_failoverreservation
      WHERE reservation_id = ANY(held_ids) ORDER BY reservation_id FOR NO KEY UPDATE;
    stale := ARRAY(
        SELECT one.id
          FROM (SELECT id, vm_host_id FROM capacity_reservationallocation
                 WHERE vm_uuid = NEW.openstack_id OFFSET 0) AS one
         WHERE one.vm_host_id <> NEW.host_id
    );
    UPDATE failover_failoverreservation AS held
       SET last_changed_at = now(), acknowledged_at = NULL, next_validation_at = now(),
           version = held.version + 1
      FROM capacity_forget_users(stale) AS gone(reservation_id)
     WHERE held.reservation_id = gone.reservation_id;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER hosts_instance_failover_move
    AFTER UPDATE OF host_id ON hosts_instance
    FOR EACH ROW
    WHEN (NEW.host_id IS NOT NULL AND OLD.host_id IS NOT NULL AND OLD.host_id <> NEW.host_id)
    EXECUTE FUNCTION failover_vm_moved();
