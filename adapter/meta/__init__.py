"""The Meta Service's protocol as its callers speak it: wire forms, clients, failover between endpoints."""
