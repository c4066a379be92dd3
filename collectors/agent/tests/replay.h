// The file of recorded activity that a test hands to the stand-in CUPTI: the header, `names`
// texts (length, bytes), then rows. tests/collectors/agent/replay_file.py writes it.
#pragma once

#include <cstdint>

struct ReplayHeader {
  uint32_t names, row_bytes;
};

struct ReplayRow {
  uint64_t start_ns, end_ns, bytes, graph_node_id;
  uint32_t kind, device, context, stream, correlation_id, graph_id, name;
  uint32_t grid[3], block[3], cluster[3];
  uint32_t registers, static_shared, dynamic_shared, executed_shared, local_per_thread;
  uint32_t launch_type, copy_kind, thread_id, call;
  uint32_t unused;
};
