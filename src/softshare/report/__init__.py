"""Show a run: figures, a page of them, and the same page while the run trains."""
