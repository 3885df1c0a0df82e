"""The evaluation of privmarket: the paper's tables and figures, result pages, tuning, benches and broker torture.

A distribution of its own, `privmarket-studies`. It sees all of privmarket; nothing in privmarket imports it. Its
commands join the `privmarket` command line through the entry-point group `privmarket.commands`.
"""
