-- The flavor groups, of some, that a claim may be of: that of the VM's own flavor while it keeps its
-- amounts, else those of the flavors that Nova would ask for like that, disk aside.
CREATE OR REPLACE FUNCTION capacity_groups_of_claim(
    p_vm text, p_memory_bytes bigint, p_vcpus bigint, p_classes jsonb, p_offered text[]
) RETURNS text[] LANGUAGE plpgsql STABLE SET enable_indexscan = on AS $$
DECLARE
    v_flavor text;
BEGIN
    SELECT vm.flavor_name INTO v_flavor FROM hosts_instance AS vm
     WHERE vm.openstack_id = p_vm AND (vm.memory_bytes, vm.vcpus) = (p_memory_bytes, p_vcpus);
    IF FOUND THEN
        RETURN ARRAY(
            SELECT own.name::text
              FROM hosts_flavor AS flavor
              JOIN capacity_flavorgroupmember AS member ON member.flavor_id = flavor.id
              JOIN capacity_flavorgroup AS own ON own.id = member.group_id
             WHERE flavor.name = v_flavor);
    END IF;
    RETURN ARRAY(
        SELECT DISTINCT own.name::text
          FROM capacity_flavorgroup AS own
          JOIN capacity_flavorgroupmember AS member ON member.group_id = own.id
          JOIN hosts_flavor AS flavor ON flavor.id = member.flavor_id
         WHERE own.name = ANY(p_offered)
           AND (flavor.memory_bytes = p_memory_bytes
                OR flavor.extra_specs ? 'resources:MEMORY_MB')
           AND capacity_flavor_asks(flavor.memory_bytes, flavor.vcpus, flavor.extra_specs,
                                    p_classes));
END
$$;
