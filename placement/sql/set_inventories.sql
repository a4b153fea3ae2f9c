INSERT INTO placement_inventory
    (provider_id, resource_class_id, total, reserved, min_unit, max_unit, step_size,
     allocation_ratio)
SELECT p.id, c.id, n.total, n.reserved, n.low, n.high, n.step, n.ratio
  FROM unnest(%s::uuid[], %s::text[], %s::int[], %s::int[], %s::int[], %s::int[], %s::int[],
              %s::float8[]) AS n (uuid, class, total, reserved, low, high, step, ratio)
  JOIN placement_provider p ON p.uuid = n.uuid
  JOIN placement_resource_class c ON c.name = n.class
    ON CONFLICT (provider_id, resource_class_id) DO UPDATE
   SET total = excluded.total, reserved = excluded.reserved, min_unit = excluded.min_unit,
       max_unit = excluded.max_unit, step_size = excluded.step_size,
       allocation_ratio = excluded.allocation_ratio, updated_at = statement_timestamp()
