-- Replaces what consumers hold and settles that in the ledger (ADR 0029), or fails it as
-- placement_replace_allocations and placement_settled do.
CREATE OR REPLACE FUNCTION placement_claim(
    c_uuid uuid[], c_project text[], c_user text[], c_type text[], c_generation integer[],
    a_consumer integer[], a_provider uuid[], a_class text[], a_amount bigint[],
    p_actor text, p_request text, p_lock_timeout text, p_consumers text[], p_enforces boolean
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM placement_replace_allocations(
        c_uuid, c_project, c_user, c_type, c_generation, a_consumer, a_provider, a_class, a_amount,
        p_actor, p_request, p_lock_timeout);
    IF cardinality(c_uuid) = 1 AND a_provider[1] = ALL (a_provider)
       AND placement_settle_new(c_uuid[1], c_project[1], a_provider[1], a_class, a_amount,
                                p_enforces) THEN
        RETURN;
    END IF;
    PERFORM placement_settled(p_consumers, p_enforces);
END
$$;
