"""Privacy that is sold: what was released, how much noise it needs, what it costs, what is left."""
