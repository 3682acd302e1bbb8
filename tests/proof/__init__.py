"""The laws of the register, for all values: the production code is run on the symbols of an SMT solver (z3)."""
