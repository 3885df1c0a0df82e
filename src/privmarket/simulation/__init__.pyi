from ._attacks import (
    AttackPlan as AttackPlan,
    AttackResult as AttackResult,
    Subject as Subject,
    attack_client as attack_client,
    attack_run as attack_run,
)
from ._config import FederationConfig as FederationConfig, Training as Training
from ._federate import federate as federate
from ._federation import Federation as Federation
from ._plan import Plan as Plan, Planner as Planner, plan as plan
from ._result import RunResult as RunResult, client_table as client_table, summarise as summarise
