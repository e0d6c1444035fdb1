"""The tables and figures of Wang et al. 2020, and the studies behind the defaults: one script each.

Run them from a clone, `python -m reproduce.NAME --help`. Nothing here is installed with the package.
"""
