"""Where a replay goes. A target has three methods: prepare, launch, drain."""

from spanlite_replay.targets.base import Outcome, Target
from spanlite_replay.targets.dry import DryTarget
from spanlite_replay.targets.kafka import KafkaTarget

__all__ = ["DryTarget", "KafkaTarget", "Outcome", "Target"]
