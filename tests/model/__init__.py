"""The model test: several adapters, one Meta Service and everything that can go wrong between them, in virtual time."""
