"""The page to draw on: a compressed image classifier that decodes and runs in a browser, offline."""
