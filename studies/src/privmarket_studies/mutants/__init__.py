"""Do the tests bite? Small faults are put into the code one at a time, and the tests that cover it must fail.

`python -m privmarket_studies.mutants run` (or `make mutants`) tries a fixed sample of faults in the packages that
decide about money and privacy. `faults` makes them, `trial` runs the tests against one, `campaign` goes through
a sample of them, `page` writes what came out.
"""
