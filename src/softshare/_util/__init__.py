"""Tools that every room uses: atomic files, typed dataclasses, compiled functions, the folder of a run."""
