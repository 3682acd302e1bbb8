"""The command `offset-adapter`: options, what its tools print, and the files that they read and write."""
