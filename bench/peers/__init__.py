"""One worker program per client: it runs one cell and prints its sample as JSON."""
