"""Claims of the zip_dl paper."""
