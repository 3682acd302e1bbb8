"""The data source `offset-journal`: the rows of journal segments."""
