// The shared memory between an observed process and the daemon.
//
// One file a process: a header page, then a ring of records. Producers are the process's
// own threads and CUPTI's; the one consumer is the daemon, which may come before, during
// or after the process. Both sides map the file; neither ever waits for the other.
//
// Everything here is plain data with fixed offsets, so that a daemon of another build can
// check `layout_version` and read it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace spanlite {

constexpr uint64_t kRingMagic = 0x31474E524C4E5053ull;  // "SPNLRNG1"
constexpr uint32_t kLayoutVersion = 1;
constexpr uint32_t kHeaderBytes = 4096;
constexpr uint32_t kRecordAlign = 8;
// The end of the header's page is the daemon's, which keeps there, in the order of `Drop`, the drops
// that it has told: one that starts anew goes on from them.
constexpr uint32_t kToldOffset = kHeaderBytes - 64;

// How much is recorded. The daemon sets the wish, the agent reports what is so.
enum class Level : uint32_t { kOff = 0, kRanges = 1, kWindows = 2, kContinuous = 3 };

// Why records were lost. The index is the same in `Header::dropped`.
enum class Drop : uint32_t {
  kRingFull = 0,
  kCuptiDropped = 1,   // by CUPTI, for a reason of its own
  kBudget = 2,         // our own pool of buffers was at its limit
  kUnknownRecord = 3,  // a record kind this build does not know
  kTorn = 4,           // begun by a process that was killed before it could finish them
  kRingDeleted = 5,    // in rings of dead processes that this agent deleted, as nobody came for them
  kCount = 8,
};

// Written by the daemon, read by the agent at step boundaries and by its own thread.
struct Control {
  std::atomic<uint32_t> level;            // Level
  std::atomic<uint32_t> capture_request;  // grows by one for each capture on demand
  std::atomic<uint32_t> capture_steps;    // how many steps that capture wants
  std::atomic<uint32_t> budget_ppm;       // allowed cost, parts per million of step time
  std::atomic<uint64_t> step_slo_ns;      // a longer step opens a window; 0: never
  std::atomic<uint32_t> strings_epoch;    // a change makes the agent send all strings anew
  std::atomic<uint32_t> detach;           // Detach
  std::atomic<uint32_t> api_calls;        // 1: record every runtime and driver call
  std::atomic<uint32_t> capture_reason;   // WindowReason of that capture; what it cannot be: demand
};

// kWhenHeld: also where other threads launch, if they can be held meanwhile.
enum class Detach : uint32_t { kNever = 0, kWhenProven = 1, kWhenHeld = 2 };

// Written by the agent.
struct State {
  std::atomic<uint32_t> level;
  std::atomic<uint32_t> attached;     // CUPTI callbacks are registered
  std::atomic<uint32_t> window_open;
  std::atomic<uint32_t> disabled;     // the agent switched itself off; `reason` says why
  std::atomic<uint64_t> steps;        // steps seen
  std::atomic<uint64_t> steps_covered;
  std::atomic<uint64_t> windows;
  std::atomic<uint64_t> cost_ppm;     // measured
  std::atomic<uint64_t> records;
  std::atomic<uint64_t> buffers;
  std::atomic<uint64_t> parse_ns;     // time spent on CUPTI's buffers
  std::atomic<uint64_t> attach_ns;
  std::atomic<uint64_t> launch_threads;  // distinct threads seen launching
  char reason[128];
  std::atomic<uint64_t> attached_cost_ppm;  // steps attached but idle against steps detached
  std::atomic<uint64_t> detaches;
  std::atomic<uint32_t> hw_trace;     // HwTrace
  std::atomic<uint32_t> graph_trace;  // 1: one record a graph launch, no nodes, all the time
  std::atomic<uint64_t> window_cost_ns;     // what the budget believes that all windows cost
  std::atomic<uint32_t> window_spacing_ms;  // step time that it spreads the last one over
  std::atomic<uint32_t> window_steps;       // how many the next one by schedule may hold
};

// Whether the GPU's own time stamping (HES) is in use.
enum class HwTrace : uint32_t { kNotTried = 0, kOn = 1, kRefused = 2 };

struct Header {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t header_bytes;
  uint64_t capacity_bytes;  // a power of two
  uint32_t process_id;
  uint32_t cupti_version;
  uint64_t process_start_ticks;  // field 22 of /proc/PID/stat: tells a reused pid apart
  uint64_t created_ns;           // CLOCK_REALTIME
  char executable[256];
  char agent_version[32];
  alignas(64) Control control;
  alignas(64) State state;
  alignas(64) std::atomic<uint64_t> dropped[static_cast<size_t>(Drop::kCount)];
  alignas(64) std::atomic<uint64_t> head;  // bytes reserved by producers, ever
  alignas(64) std::atomic<uint64_t> tail;  // bytes consumed by the daemon, ever
};

static_assert(sizeof(Header) <= kToldOffset, "the header must fit its page");
static_assert(kToldOffset + sizeof(Header::dropped) == kHeaderBytes, "one place for each reason");
// No process loses more records than this, and no header of a batch takes more.
constexpr uint64_t kMostDrops = 1ull << 53;

static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared memory needs lock-free atomics");

enum class RecordType : uint16_t {
  kPadding = 0,
  kString = 1,
  kClock = 2,
  kKernel = 3,
  kMemcpy = 4,
  kMemset = 5,
  kSync = 6,
  kApi = 7,
  kGraph = 8,
  kOverhead = 9,
  kRange = 10,
  kWindow = 11,
  kStep = 12,
  kExternal = 13,
  kReserved = 0xFFFF,  // its size is known, its body is being written
};

// Bits of `flags`: what is odd about a record's times, and a range of nvtxRangeStart/End.
constexpr uint16_t kZeroTimestamp = 1;
constexpr uint16_t kInvertedTimes = 2;
constexpr uint16_t kStartEnd = 4;

// First word of each record, stored last, with release: a record whose word is 0 is not
// there yet. The consumer zeroes what it has read before it moves `tail`, so that room which is
// reserved and not yet begun reads as zeros.
struct RecordHead {
  uint32_t size_bytes;  // with this head; a multiple of 8
  uint16_t type;
  uint16_t flags;
};

// Times are CLOCK_REALTIME ns, as CUPTI gives them on Linux.

// Ids grow and are never used again. Id 0 (and length 0) says: the agent forgets all texts so
// far and sends those it still needs anew. Records with older ids may still follow for a
// moment, so a reader forgets what lies two such marks back.
struct StringRecord {
  RecordHead head;
  uint32_t id;
  uint32_t length;
  // `length` bytes of text follow.
};

struct ClockRecord {
  RecordHead head;
  uint64_t realtime_ns, monotonic_ns, monotonic_raw_ns, cupti_ns;
  uint64_t uncertainty_ns;  // half of the time the reading took
};

struct KernelRecord {
  RecordHead head;
  uint64_t start_ns, end_ns;
  uint64_t graph_node_id;
  uint32_t device, context, stream, correlation_id, graph_id, name;
  uint32_t grid_x, grid_y, grid_z, block_x, block_y, block_z, cluster_x, cluster_y, cluster_z;
  uint32_t registers_per_thread, static_shared_bytes, dynamic_shared_bytes;
  uint32_t executed_shared_bytes, local_bytes_per_thread, window;
  uint32_t launch_type;
};

struct MemoryRecord {  // memcpy and memset
  RecordHead head;
  uint64_t start_ns, end_ns, bytes, graph_node_id;
  uint32_t device, context, stream, correlation_id, graph_id;
  uint32_t copy_kind;  // CUpti_ActivityMemcpyKind; for a memset its value
  uint32_t window, peer_device;
};

struct SyncRecord {
  RecordHead head;
  uint64_t start_ns, end_ns;
  uint32_t kind, context, stream, correlation_id, event, window;
};

struct ApiRecord {
  RecordHead head;
  uint64_t start_ns, end_ns;
  uint32_t thread_id, correlation_id, call, domain;  // domain 0: driver, 1: runtime
  uint32_t result, window;
};

struct GraphRecord {
  RecordHead head;
  uint64_t start_ns, end_ns;
  uint32_t device, context, stream, correlation_id, graph_id, window;
};

struct OverheadRecord {
  RecordHead head;
  uint64_t start_ns, end_ns;
  uint32_t kind, thread_id, correlation_id, window;
};

// CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: what another library (OpenACC, a framework) calls the
// work around a call.
struct ExternalRecord {
  RecordHead head;
  uint64_t external_id;
  uint32_t correlation_id, kind;
};

struct RangeRecord {  // an NVTX range that has ended; kStartEnd: it need not nest
  RecordHead head;
  uint64_t start_ns, end_ns;
  uint64_t id, parent_id;  // of this process; 0: none
  uint64_t payload;
  uint32_t thread_id, name, domain, category;
  uint32_t payload_type, depth;
};

enum class WindowReason : uint32_t {
  kSchedule = 0,
  kDemand = 1,
  kSlo = 2,
  kContinuous = 3,
  kLearn = 4,  // from the start of CUDA: warm-up and graph capture
  // Asked for by the daemon of itself: a GPU holds its clocks down, a queue grows.
  kThrottle = 5,
  kQueue = 6,
};

// Written when the window has closed. `window` in the other records is the window whose
// open_ns..close_ns holds their start, whenever CUPTI delivered them; 0: none.
struct WindowRecord {
  RecordHead head;
  uint64_t open_ns, close_ns;
  uint64_t first_step, steps;  // whole steps covered, and the number of the first
  uint64_t steps_since_last;   // steps seen since the window before closed: the weight's other half
  uint64_t cost_ppm;
  uint32_t window, reason, level, partial;  // partial: an edge cut a step
};

struct StepRecord {
  RecordHead head;
  uint64_t start_ns, end_ns, number;
  uint32_t thread_id, name, window, covered;  // covered: 1 where the window holds all of it
};

}  // namespace spanlite
