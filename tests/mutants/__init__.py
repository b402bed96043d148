"""Mutation testing: tables of one-line faults, and the tests that must see each of them (`make mutants`)."""
