"""Load test of the HTTP service, with a state of sums and with a key-value cache."""
