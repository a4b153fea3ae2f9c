-- Settles a write within its own statement, or fails it: HRA07 where it takes room that is held for
-- others, HRA08 where failover reservations are used, which takes more than this function.
CREATE OR REPLACE FUNCTION placement_settled(p_consumers text[], p_enforces boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_one record;
BEGIN
    FOR v_one IN SELECT * FROM placement_settle_claims(p_consumers) LOOP
        IF v_one.failover_id IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'HRA08', MESSAGE = 'failover room is used',
                DETAIL = json_build_array(v_one.failover_id);
        ELSIF p_enforces THEN
            RAISE EXCEPTION USING ERRCODE = 'HRA07', MESSAGE = 'room is held for others',
                DETAIL = json_build_array(v_one.host_id, v_one.resource, v_one.taken,
                                          v_one.effective, v_one.before);
        END IF;
    END LOOP;
END
$$;
