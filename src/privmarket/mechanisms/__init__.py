"""Auction rules, one per file under its name from the literature, and the registry that finds them."""

from privmarket.mechanisms.function_rule import FunctionRule, RuleFunction
from privmarket.mechanisms.no_sale import why_nothing_sold
from privmarket.mechanisms.registry import Rule, mechanism, mechanism_names, resolve

__all__ = ["FunctionRule", "Rule", "RuleFunction", "mechanism", "mechanism_names", "resolve", "why_nothing_sold"]
