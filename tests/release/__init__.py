"""What a release is checked for before it is uploaded: `make release-check` runs it; the tests beside it check its pieces."""
