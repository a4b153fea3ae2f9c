"""The database backend: Django's, with the deadlines of this process and cancelled statements."""
