"""Principals, access control, SASL mechanisms and names in certificates: pure, without I/O."""
