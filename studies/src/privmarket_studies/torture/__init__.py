"""Harnesses that try to break the broker: kills, random requests, simulated crashes. Tests run them in small."""
