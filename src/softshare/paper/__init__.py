"""Code for the tables of the paper and of this repository: recipes, rivals, published rows, pages of results."""
