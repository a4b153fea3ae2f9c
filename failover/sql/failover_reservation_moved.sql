CREATE OR REPLACE FUNCTION failover_reservation_moved() RETURNS trigger LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_indexscan = off
SET enable_indexonlyscan = off AS $$
BEGIN
    IF NEW.kind <> OLD.kind
       AND EXISTS (SELECT FROM capacity_reservationallocation WHERE reservation_id = NEW.id) THEN
        RAISE EXCEPTION 'a reservation with users keeps its kind'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'failover_reservation_keeps_kind',
                  TABLE = 'capacity_reservation';
    END IF;
    IF NEW.kind = 'failover' THEN
        PERFORM failover_enforce_rules(ARRAY[NEW.id]);
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER capacity_reservation_failover_update
    AFTER UPDATE OF kind, zone, target_host_id ON capacity_reservation
    FOR EACH ROW
    WHEN ((OLD.kind = 'failover' OR NEW.kind = 'failover') AND (OLD.kind, OLD.zone,
        OLD.target_host_id) IS DISTINCT FROM (NEW.kind, NEW.zone, NEW.target_host_id))
    EXECUTE FUNCTION failover_reservation_moved();
