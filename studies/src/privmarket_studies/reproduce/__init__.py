"""The paper's evaluation on our code: cells that are computed once and kept, and pages rendered from them.

`cells` says what a cell is, `cache` keeps them, `runner` computes what is missing, one module per question lists
its cells and turns their results into a `document`, and `report` writes it as Markdown, CSV, figures and HTML.
"""
