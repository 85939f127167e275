"""See a run: figures, a page that shows them, and the same page while it trains."""
