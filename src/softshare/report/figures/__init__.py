"""The figures of a report. Each file has a pure `..._data` and a `draw_...`, and `catalogue` lists them."""
