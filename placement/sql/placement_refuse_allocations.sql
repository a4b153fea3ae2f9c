-- Why a write was refused: the first pair, in order of the request, that breaks a rule.
CREATE OR REPLACE FUNCTION placement_refuse_allocations(
    a_provider uuid[], a_class text[], a_amount bigint[], v_consumer bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_bad record;
BEGIN
    SELECT a.provider, a.class INTO v_bad
      FROM unnest(a_provider, a_class) WITH ORDINALITY AS a (provider, class, place)
     WHERE NOT EXISTS (
            SELECT FROM placement_inventory i
              JOIN placement_provider p ON p.id = i.provider_id
              JOIN placement_resource_class c ON c.id = i.resource_class_id
             WHERE p.uuid = a.provider AND c.name = a.class)
     ORDER BY a.place LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HRA03', MESSAGE = 'no inventory',
            DETAIL = json_build_array(v_bad.provider, v_bad.class);
    END IF;
    SELECT a.provider, a.class, a.amount, i.min_unit, i.max_unit, i.step_size INTO v_bad
      FROM unnest(a_provider, a_class, a_amount) WITH ORDINALITY AS a (provider, class, amount, place)
      JOIN placement_provider p ON p.uuid = a.provider
      JOIN placement_resource_class c ON c.name = a.class
      JOIN placement_inventory i ON i.provider_id = p.id AND i.resource_class_id = c.id
     WHERE a.amount NOT BETWEEN i.min_unit AND i.max_unit OR a.amount % i.step_size <> 0
     ORDER BY a.place LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'HRA04', MESSAGE = 'constraint',
            DETAIL = json_build_array(v_bad.provider, v_bad.class, v_bad.amount, v_bad.min_unit,
                                      v_bad.max_unit, v_bad.step_size);
    END IF;
    SELECT w.provider, w.class, w.wanted, i.used - coalesce(h.held, 0) AS used,
           (i.total - i.reserved) * i.allocation_ratio AS capacity INTO v_bad
      FROM (SELECT a.provider, a.class, sum(a.amount)::bigint AS wanted, min(a.place) AS place
              FROM unnest(a_provider, a_class, a_amount) WITH ORDINALITY
                AS a (provider, class, amount, place)
             GROUP BY a.provider, a.class) w
      JOIN placement_provider p ON p.uuid = w.provider
      JOIN placement_resource_class c ON c.name = w.class
      JOIN placement_inventory i ON i.provider_id = p.id AND i.resource_class_id = c.id
      LEFT JOIN LATERAL (
            SELECT sum(o.used)::bigint AS held FROM placement_allocation o
             WHERE o.consumer_id = ANY (v_consumer)
               AND o.provider_id = p.id AND o.resource_class_id = c.id) h ON true
     WHERE i.used - coalesce(h.held, 0) + w.wanted > (i.total - i.reserved) * i.allocation_ratio
       AND NOT (w.wanted <= coalesce(h.held, 0) AND i.used > 0)
     ORDER BY w.place LIMIT 1;
    RAISE EXCEPTION USING ERRCODE = 'HRA05', MESSAGE = 'capacity',
        DETAIL = json_build_array(v_bad.provider, v_bad.class, v_bad.wanted, v_bad.used,
                                  v_bad.capacity);
END
$$;
