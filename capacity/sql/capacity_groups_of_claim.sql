-- The flavor groups that a claim may be of: that of the VM's own flavor while it keeps its amounts,
-- else those of the flavors that Nova would ask for like that, disk aside.
CREATE OR REPLACE FUNCTION capacity_groups_of_claim(
    p_vm text, p_memory_bytes bigint, p_vcpus bigint, p_classes jsonb
) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_groups text[];
BEGIN
    SELECT coalesce(array_agg(own.name::text) FILTER (WHERE own.name IS NOT NULL), '{}')
      INTO v_groups
      FROM hosts_instance AS vm
      LEFT JOIN hosts_flavor AS flavor ON flavor.name = vm.flavor_name
      LEFT JOIN capacity_flavorgroupmember AS member ON member.flavor_id = flavor.id
      LEFT JOIN capacity_flavorgroup AS own ON own.id = member.group_id
     WHERE vm.openstack_id = p_vm AND (vm.memory_bytes, vm.vcpus) = (p_memory_bytes, p_vcpus)
    HAVING count(*) > 0;
    IF FOUND THEN
        RETURN v_groups;
    END IF;
    SELECT array_agg(DISTINCT own.name::text) INTO v_groups
      FROM hosts_flavor AS flavor
      JOIN capacity_flavorgroupmember AS member ON member.flavor_id = flavor.id
      JOIN capacity_flavorgroup AS own ON own.id = member.group_id
     WHERE (flavor.memory_bytes = p_memory_bytes OR flavor.extra_specs ? 'resources:MEMORY_MB')
       AND capacity_flavor_asks(flavor.memory_bytes, flavor.vcpus, flavor.extra_specs, p_classes);
    RETURN coalesce(v_groups, '{}');
END
$$;
