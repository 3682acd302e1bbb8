"""The mutation check: plausible bugs, each applied to a private copy of the project, and the checks that have to catch them."""
