"""Offsets as values: records and the rules by which they merge, names, packed and Arrow forms. No I/O, no clock, no task."""
