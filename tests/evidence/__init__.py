"""`make evidence`: random seeds for every machine of proof, what came of them, and the page that shows it."""
