"""Peers, meters and oracles for the tests."""
