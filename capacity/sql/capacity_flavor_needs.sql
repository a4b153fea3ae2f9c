-- What a VM of a flavor needs of network and disk I/O (bytes per second) and GPUs, as
-- scheduling.needs.flavor_needs says. Nova's unit of network is 1000 bytes per second.
CREATE OR REPLACE FUNCTION capacity_flavor_needs(
    p_specs jsonb, OUT network bigint, OUT disk_io bigint, OUT gpu bigint
) LANGUAGE sql IMMUTABLE AS $$
SELECT 1000 * coalesce(max(amount) FILTER (WHERE key LIKE 'quota:vif%'), 0),
       coalesce(max(amount) FILTER (WHERE key = 'quota:disk_total_bytes_sec'),
                sum(amount) FILTER (WHERE key LIKE 'quota:disk%'), 0)::bigint,
       coalesce(sum(amount) FILTER (WHERE key LIKE 'resources:%'), 0)::bigint
  FROM (SELECT spec.key, spec.value::bigint AS amount FROM jsonb_each_text(p_specs) AS spec
         WHERE spec.key = ANY ('{quota:vif_inbound_average,quota:vif_outbound_average,
                                 quota:disk_total_bytes_sec,quota:disk_read_bytes_sec,
                                 quota:disk_write_bytes_sec,resources:VGPU,resources:PGPU}')
           AND spec.value ~ '^[0-9]{1,12}$') AS known
$$;
