"""The checks of `doctor`."""
