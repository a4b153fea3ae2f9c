"""The ledger: the only writer of host rooms, reservations and the VMs in them (ADR 0027).

``plan`` says what shall change, ``apply`` writes it; ``rooms`` locks and counts what hosts have
left, ``vms`` keeps the VMs in slots, ``blocking`` is the rule of what a reservation takes, and
``slot_request`` the question by which a slot looks for a host.
"""
