"""Commands of `mfdl` about the papers: `mfdl claims` and `mfdl reproduce`."""
