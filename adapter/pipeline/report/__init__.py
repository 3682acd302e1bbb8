"""The job `report`: a page of the lag tables. It needs no Spark."""
