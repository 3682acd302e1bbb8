"""The job `lag`: lag, rates, status and rewinds of every group, from the journals."""
