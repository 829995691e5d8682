"""Peers, meters and oracles for the tests; nothing here imports the client."""
