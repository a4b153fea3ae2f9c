CREATE OR REPLACE TRIGGER journal_auditentry_append_only
    BEFORE UPDATE OR DELETE ON journal_auditentry
    FOR EACH ROW EXECUTE FUNCTION headroom_refuse_change();
