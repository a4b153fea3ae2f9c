"""The first day with a cloud: what ``manage.py connect`` proposes and writes."""
