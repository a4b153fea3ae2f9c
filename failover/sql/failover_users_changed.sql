CREATE OR REPLACE FUNCTION failover_users_changed() RETURNS trigger LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_indexonlyscan = off AS $$
BEGIN
    IF EXISTS (
        SELECT FROM capacity_reservation AS held
         WHERE held.id = NEW.reservation_id
           AND (held.kind = 'failover') <> (NEW.vm_host_id IS NOT NULL)
    ) THEN
        RAISE EXCEPTION 'users of failover reservations, and only they, say where they run'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'failover_users_are_complete',
                  TABLE = 'capacity_reservationallocation';
    END IF;
    IF NEW.vm_host_id IS NOT NULL THEN
        PERFORM failover_enforce_rules(ARRAY[NEW.reservation_id]);
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER capacity_reservationallocation_failover_update
    AFTER UPDATE OF reservation_id, vm_uuid, vm_host_id ON capacity_reservationallocation
    FOR EACH ROW
    WHEN ((OLD.reservation_id, OLD.vm_uuid, OLD.vm_host_id) IS DISTINCT FROM
        (NEW.reservation_id, NEW.vm_uuid, NEW.vm_host_id))
    EXECUTE FUNCTION failover_users_changed();
