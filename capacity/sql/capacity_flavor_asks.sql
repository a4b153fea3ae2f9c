-- Whether Nova asks for these amounts of a host for a flavor: memory and VCPU, or PCPU with a CPU
-- policy, each unless "resources:" in the extra specs says otherwise; other classes that these name
-- as well. Disk is left out: a VM that boots from a volume needs none.
CREATE OR REPLACE FUNCTION capacity_flavor_asks(
    p_memory_bytes bigint, p_vcpus integer, p_specs jsonb, p_classes jsonb
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF coalesce(p_specs ->> 'resources:MEMORY_MB', (p_memory_bytes / 1048576)::text)
           <> coalesce(p_classes ->> 'MEMORY_MB', '0') THEN
        RETURN false;
    END IF;
    IF p_specs ->> 'hw:cpu_policy' = 'mixed' AND NOT p_specs ?| '{resources:VCPU,resources:PCPU}' THEN
        IF coalesce((p_classes ->> 'VCPU')::bigint, 0)
               + coalesce((p_classes ->> 'PCPU')::bigint, 0) <> p_vcpus THEN
            RETURN false;
        END IF;
    ELSIF coalesce(p_specs ->> 'resources:VCPU',
                   CASE WHEN p_specs ->> 'hw:cpu_policy' = 'dedicated'
                             OR p_specs ? 'resources:PCPU' THEN '0'
                        ELSE p_vcpus::text END) <> coalesce(p_classes ->> 'VCPU', '0')
       OR coalesce(p_specs ->> 'resources:PCPU',
                   CASE WHEN p_specs ->> 'hw:cpu_policy' = 'dedicated'
                             AND NOT p_specs ? 'resources:VCPU' THEN p_vcpus::text
                        ELSE '0' END) <> coalesce(p_classes ->> 'PCPU', '0') THEN
        RETURN false;
    END IF;
    -- Where no spec names a class there is nothing to look up: a question takes longer than all this.
    IF strpos(p_specs::text, '"resources:') = 0 THEN
        RETURN true;
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM jsonb_each_text(p_specs) AS spec
         WHERE spec.key ~ '^resources:(?!(MEMORY_MB|VCPU|PCPU|DISK_GB)$)'
           AND spec.value <> coalesce(p_classes ->> substr(spec.key, 11), '0'));
END
$$;
