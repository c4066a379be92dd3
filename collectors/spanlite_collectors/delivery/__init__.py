"""Delivery to Kafka: numbered batches, in order, through a disk spool where need be."""

from spanlite_collectors.delivery.arguments import Role, add_delivery_arguments, open_sink
from spanlite_collectors.delivery.numbering import Numbering
from spanlite_collectors.delivery.outbox import Outbox
from spanlite_collectors.delivery.sink import UNDELIVERABLE, KafkaSink, SinkStats, head_keep
from spanlite_collectors.delivery.spool import Spool, SpoolFullError
from spanlite_collectors.delivery.transport import KafkaTransport, Message, Transport

__all__ = [
    "UNDELIVERABLE",
    "KafkaSink",
    "KafkaTransport",
    "Message",
    "Numbering",
    "Outbox",
    "Role",
    "SinkStats",
    "Spool",
    "SpoolFullError",
    "Transport",
    "add_delivery_arguments",
    "head_keep",
    "open_sink",
]
