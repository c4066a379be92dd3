"""SpanLite: the contract that collectors, pipeline, replay and analytics share."""
