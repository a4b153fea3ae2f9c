-- What consumers hold on hosts, one row for each of their hosts. Rows are found one by one by their
-- keys (OFFSET 0 keeps it that way), whatever the server knows of the tables.
CREATE OR REPLACE FUNCTION placement_claimed(p_consumers text[])
RETURNS TABLE (
    vm text, project text, host bigint, memory_bytes bigint, vcpus bigint, classes jsonb
) LANGUAGE sql STABLE AS $$
SELECT vm, project, host,
       (coalesce(sum(used) FILTER (WHERE class = 'MEMORY_MB'), 0) * 1048576)::bigint
           AS memory_bytes,
       coalesce(sum(used) FILTER (WHERE class IN ('VCPU', 'PCPU')), 0)::bigint AS vcpus,
       jsonb_object_agg(class, used) AS classes
  FROM (SELECT consumer.uuid::text AS vm, payer.external_id AS project, host.id AS host,
               class.name AS class, sum(given.used)::bigint AS used
          FROM (SELECT consumer.id, consumer.uuid, consumer.project_id
                  FROM placement_consumer AS consumer
                 WHERE consumer.uuid = ANY(p_consumers::uuid[]) OFFSET 0) AS consumer
          JOIN LATERAL (
               SELECT payer.external_id FROM placement_project AS payer
                WHERE payer.id = consumer.project_id OFFSET 0) AS payer ON true
          JOIN LATERAL (
               SELECT given.provider_id, given.resource_class_id, given.used
                 FROM placement_allocation AS given
                WHERE given.consumer_id = consumer.id OFFSET 0) AS given ON true
          JOIN LATERAL (
               SELECT class.id, class.name FROM placement_resource_class AS class
                WHERE class.id = given.resource_class_id OFFSET 0) AS class ON true
          JOIN LATERAL (
               SELECT root.uuid FROM placement_provider AS part
                 JOIN placement_provider AS root ON root.id = part.root_id
                  AND root.origin = 'host'
                WHERE part.id = given.provider_id OFFSET 0) AS root ON true
          JOIN LATERAL (
               SELECT host.id FROM hosts_host AS host
                WHERE hosts_provider_uuid(host.provider_uuid, host.openstack_id) = root.uuid
               OFFSET 0) AS host ON true
         GROUP BY consumer.uuid, payer.external_id, host.id, class.name) AS held
 GROUP BY vm, project, host
$$;
