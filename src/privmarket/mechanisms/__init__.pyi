from . import learned as learned
from ._csra import Csra as Csra, CsraLiteral as CsraLiteral
from ._function_rule import FunctionRule as FunctionRule, RuleFunction as RuleFunction
from ._graded_ration import GradedRation as GradedRation
from ._jsam import Jsam as Jsam
from ._mean_field_menu import MeanFieldMenu as MeanFieldMenu
from ._mfg_pricing import MfgPricing as MfgPricing, MfgPricingLiteral as MfgPricingLiteral
from ._no_sale import why_nothing_sold as why_nothing_sold
from ._pac import Pac as Pac, PacLiteral as PacLiteral
from ._precision_menu import PrecisionMenu as PrecisionMenu
from ._proportional_share import ProportionalShare as ProportionalShare
from ._ration import Ration as Ration
from ._registry import (
    Rule as Rule,
    learned_names as learned_names,
    mechanism as mechanism,
    mechanism_names as mechanism_names,
    resolve as resolve,
)
from ._two_step import TwoStep as TwoStep
from ._vcg import KPlusOnePrice as KPlusOnePrice, Vcg as Vcg, VcgLiteral as VcgLiteral
