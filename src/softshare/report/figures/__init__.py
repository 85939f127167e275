"""The figures of a report: one file each, with a pure `..._data` and a `draw_...`; `catalogue` lists them."""
