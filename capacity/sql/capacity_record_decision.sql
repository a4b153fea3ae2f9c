-- The lock keeps the listing until the decision that refers to it is committed. Returns false when
-- the listing of p_digest is not there.
CREATE OR REPLACE FUNCTION capacity_record_decision(p_decision json, p_masks bytea, p_digest text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_listing_id bigint;
BEGIN
    IF p_digest <> '' THEN
        SELECT listing.id INTO v_listing_id FROM capacity_hostlisting AS listing
         WHERE listing.digest = p_digest FOR KEY SHARE;
        IF v_listing_id IS NULL THEN
            RETURN false;
        END IF;
    END IF;
    INSERT INTO capacity_schedulingdecision (vm_uuid, project_id, request_id, pipeline_name,
           pipeline_version, intent, intent_reason, zone, flavor_name, flavor_group_name,
           memory_bytes, vcpus, is_successful, outcome_class, message, hosts_in, hosts_out,
           target_host_name, top_hosts, removals, duration_microseconds, masks, listing_id)
    SELECT vm_uuid, project_id, request_id, pipeline_name, pipeline_version, intent,
           coalesce(intent_reason, ''), zone, flavor_name, flavor_group_name, memory_bytes, vcpus,
           is_successful, outcome_class, message, hosts_in, hosts_out, target_host_name, top_hosts,
           removals, duration_microseconds, p_masks, v_listing_id
      FROM json_to_record(p_decision) AS kept(
             vm_uuid text, project_id text, request_id text, pipeline_name text,
             pipeline_version integer, intent text, intent_reason text, zone text, flavor_name text,
             flavor_group_name text, memory_bytes bigint, vcpus bigint, is_successful boolean,
             outcome_class text, message text, hosts_in integer, hosts_out integer,
             target_host_name text, top_hosts jsonb, removals jsonb, duration_microseconds integer);
    RETURN true;
END
$$;
