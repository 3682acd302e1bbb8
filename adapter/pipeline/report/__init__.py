"""The job `report`: a page and plots of the lag tables."""
