"""Tools without a subject of their own: atomic files, typed settings, compiled functions, the folder of a run."""
