"""Generated protobuf code of spanlite.v1; see scripts/generate-proto."""
