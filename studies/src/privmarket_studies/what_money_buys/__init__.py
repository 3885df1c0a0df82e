"""What money buys: gain over the buyer's own records, under two trusts, at several lifetime ε and sums of money.

- `runs`: one run of a market, its settings chosen on public records.
- `noise`: money for equal noise by the number of clients, without any training.
- `sceptic`: models of the own records by another library.
- `copies`: models of the own pictures and warped copies of them.
- `cells`: which runs there are, the most important first.
- `page`: the page and its figures.
"""
