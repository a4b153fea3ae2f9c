-- The host and the size may come from other rows; names here are constants, never input.
CREATE TEMPORARY TABLE stage_resolved_instance AS
SELECT s.openstack_id, s.name, s.project_id, s.user_id,
    COALESCE(f.name, s.flavor_name) AS flavor_name,
    COALESCE(s.vcpus, f.vcpus) AS vcpus,
    COALESCE(s.memory_bytes, f.memory_bytes) AS memory_bytes,
    COALESCE(s.disk_gib, f.disk_gib) AS disk_gib,
    COALESCE(s.flavor_extra_specs, f.extra_specs) AS flavor_extra_specs,
    COALESCE(h.id, b.id) AS host_id, s.host_name,
    CASE WHEN s.zone = '' THEN COALESCE(h.zone, b.zone, '') ELSE s.zone END AS zone,
    s.status, s.vm_state, s.task_state, s.power_state,
    CASE WHEN s.image_id = '' THEN %(unknown)s
         ELSE COALESCE(i.os_type, %(missing_image)s) END AS os_type,
    s.image_id, s.launched_at, s.nova_created_at, s.nova_updated_at, s.metadata
FROM stage_hosts_instance s
LEFT JOIN hosts_host h ON h.name = s.host_name AND NOT s.is_service_host
LEFT JOIN (
    SELECT DISTINCT ON (spelling) spelling, id, zone FROM (
        SELECT service_host AS spelling, 0 AS rank, id, zone FROM hosts_host
        UNION ALL SELECT name, 1, id, zone FROM hosts_host
    ) spelled ORDER BY spelling, rank, id
) b ON b.spelling = s.host_name AND s.is_service_host
LEFT JOIN LATERAL (
    SELECT name, vcpus, memory_bytes, disk_gib, extra_specs FROM hosts_flavor
    WHERE s.flavor_ref IS NOT NULL
      AND (openstack_id = s.flavor_ref OR hosts_flavor.name = s.flavor_ref)
    ORDER BY (openstack_id = s.flavor_ref) DESC LIMIT 1
) f ON true
LEFT JOIN hosts_image i ON i.openstack_id = s.image_id
