-- VMs leave their reservations: the ledger's part of what triggers of other apps do when a VM moved.
-- Returns the reservation of each.
CREATE OR REPLACE FUNCTION capacity_forget_users(p_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql ROWS 5 AS $$
BEGIN
    RETURN QUERY
    DELETE FROM capacity_reservationallocation WHERE id = ANY (p_ids) RETURNING reservation_id;
END
$$;
