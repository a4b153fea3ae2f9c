CREATE OR REPLACE FUNCTION failover_users_are_complete() RETURNS trigger LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_indexonlyscan = off AS $$
DECLARE
    touched bigint[];
    is_wrong boolean;
BEGIN
    SELECT array_agg(DISTINCT fresh.reservation_id) FILTER (WHERE fresh.vm_host_id IS NOT NULL),
           bool_or((held.kind = 'failover') <> (fresh.vm_host_id IS NOT NULL))
      INTO touched, is_wrong
      FROM fresh JOIN capacity_reservation AS held ON held.id = fresh.reservation_id;
    IF is_wrong THEN
        RAISE EXCEPTION 'users of failover reservations, and only they, say where they run'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'failover_users_are_complete',
                  TABLE = 'capacity_reservationallocation';
    END IF;
    IF touched IS NOT NULL THEN
        PERFORM failover_enforce_rules(touched);
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER capacity_reservationallocation_failover_insert
    AFTER INSERT ON capacity_reservationallocation REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION failover_users_are_complete();
