#include "nvtx.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <sys/syscall.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#include <nvtx3/nvToolsExt.h>

#include "clock.h"
#include "name_cache.h"

namespace spanlite {
namespace {

NvtxSink g_sink;
// A program that opens ranges and never ends them must not eat the host's memory.
constexpr size_t kMaxOpenRanges = 100'000;
// A thread takes so many ids at a time.
constexpr uint64_t kIdsAtOnce = 64;
std::atomic<uint64_t> g_next_id{1};
// Changes at fork, so that stacks made before it are thrown away by their owners.
std::atomic<uint32_t> g_generation{0};

// NVTX hands these back as opaque handles. They live as long as the process, as NVTX's
// own strings and domains do.
struct Text {
  std::string text;
};

struct OpenRange {
  uint64_t start_ns, id, parent_id, payload;
  nvtxDomainHandle_t handle;
  uint32_t name, domain, category, payload_type, depth;
  bool is_step;
  bool hidden;  // begun at level off: on the stack for its pop alone
};

// One that may end on another thread.
struct StartedRange {
  OpenRange range;
  uint32_t thread_id;
};

// What only its thread touches, so without locks. What each range needs comes first, together.
struct alignas(64) ThreadState {
  uint32_t generation = 0, thread_id = 0;
  size_t depth = 0;   // how many of `ranges` are open
  size_t beyond = 0;  // and how many more, for which there is no room
  std::vector<OpenRange> ranges;
  uint64_t next_id = 0, end_id = 0;
  NameCache names;

  uint64_t NextId() {
    if (next_id == end_id) {
      next_id = g_next_id.fetch_add(kIdsAtOnce, std::memory_order_relaxed);
      end_id = next_id + kIdsAtOnce;
    }
    return next_id++;
  }
};

// A plain pointer, so that to find it is one look-up and no more.
thread_local ThreadState* t_state = nullptr;
thread_local bool t_ended = false;

// Ends the state with its thread. What comes after that, from destructors, goes unrecorded.
struct StateOwner {
  ~StateOwner() {
    delete t_state;
    t_state = nullptr;
    t_ended = true;
  }
};

// The thread's state as it begins, also in a forked child; nullptr where the thread is ending.
[[gnu::noinline, gnu::cold]] ThreadState* FreshState() {
  thread_local StateOwner owner;
  if (t_ended) return nullptr;
  if (t_state == nullptr) t_state = new ThreadState;
  t_state->depth = t_state->beyond = 0;
  t_state->names.Clear();
  t_state->thread_id = static_cast<uint32_t>(syscall(SYS_gettid));
  t_state->generation = g_generation.load(std::memory_order_relaxed);
  return t_state;
}

ThreadState* State() {
  ThreadState* state = t_state;
  if (state != nullptr && state->generation == g_generation.load(std::memory_order_relaxed))
    return state;
  return FreshState();
}

[[gnu::noinline, gnu::cold]] void Deepen(std::vector<OpenRange>* ranges) {
  ranges->resize(ranges->empty() ? 16 : 2 * ranges->size());
}

// Ranges that start on one thread and may end on another.
std::mutex g_started_mutex;
std::unordered_map<uint64_t, StartedRange> g_started;

bool Enabled() {
  if (g_sink.ring == nullptr) StartAgent();  // in a forked child
  if (g_sink.ring == nullptr) return false;
  const auto level = g_sink.ring->header()->control.level.load(std::memory_order_relaxed);
  return level != static_cast<uint32_t>(Level::kOff);
}

std::string Narrow(const wchar_t* text) {
  // UTF-8 by hand: wcstombs depends on the application's locale.
  std::string out;
  for (; text != nullptr && *text; ++text) {
    const auto c = static_cast<uint32_t>(*text);
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x800) {
      out += static_cast<char>(0xC0 | c >> 6);
      out += static_cast<char>(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
      out += static_cast<char>(0xE0 | c >> 12);
      out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
      out += static_cast<char>(0x80 | (c & 0x3F));
    } else {
      out += static_cast<char>(0xF0 | (c >> 18 & 0x07));
      out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
      out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
      out += static_cast<char>(0x80 | (c & 0x3F));
    }
  }
  return out;
}

struct Message {
  std::string_view text;
  const std::string* kept = nullptr;  // the text itself, where it lies for good
  uint64_t payload = 0;
  uint32_t payload_type = 0, category = 0;
};

Message Plain(const char* text) {
  Message message;
  if (text != nullptr) message.text = text;
  return message;
}

Message Kept(const void* handle) {
  Message message;
  if (handle == nullptr) return message;
  message.kept = &static_cast<const Text*>(handle)->text;
  return message;
}

// `narrow` holds the text where it comes in another encoding.
Message Read(const nvtxEventAttributes_t* attributes, std::string* narrow) {
  Message message;
  if (attributes == nullptr) return message;
  switch (attributes->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII: message = Plain(attributes->message.ascii); break;
    case NVTX_MESSAGE_TYPE_UNICODE:
      *narrow = Narrow(attributes->message.unicode);
      message.text = *narrow;
      break;
    case NVTX_MESSAGE_TYPE_REGISTERED: message = Kept(attributes->message.registered); break;
    default: break;
  }
  message.category = attributes->category;
  message.payload_type = static_cast<uint32_t>(attributes->payloadType);
  if (attributes->payloadType != NVTX_PAYLOAD_UNKNOWN)
    std::memcpy(&message.payload, &attributes->payload, sizeof message.payload);
  return message;
}

NameCache::Name NameOf(const Message& message, NameCache* names) {
  if (message.kept == nullptr) return names->Of(message.text, g_sink.strings, *g_sink.config);
  return names->OfKept(*message.kept, g_sink.strings, *g_sink.config);
}

uint32_t DomainName(nvtxDomainHandle_t domain, NameCache* names) {
  const std::string& text = reinterpret_cast<const Text*>(domain)->text;
  return names->OfKept(text, g_sink.strings, *g_sink.config).id;
}

// All of `range` but its start.
void Begin(nvtxDomainHandle_t domain, const Message& message, ThreadState* state,
           OpenRange* range) {
  const NameCache::Name name = NameOf(message, &state->names);
  range->id = state->NextId();
  range->parent_id = 0;
  range->payload = message.payload;
  range->name = name.id;
  range->domain = domain == nullptr ? 0 : DomainName(domain, &state->names);
  range->category = message.category;
  range->payload_type = message.payload_type;
  range->depth = 0;
  range->is_step = name.is_step;
  range->hidden = false;
  range->handle = domain;
}

void Emit(const OpenRange& range, uint32_t thread_id, uint64_t end_ns, uint16_t flags = 0) {
  auto* record = static_cast<RangeRecord*>(g_sink.ring->Reserve(sizeof(RangeRecord)));
  if (record == nullptr) return;
  record->start_ns = range.start_ns;
  record->end_ns = end_ns;
  record->id = range.id;
  record->parent_id = range.parent_id;
  record->payload = range.payload;
  record->thread_id = thread_id;
  record->name = range.name;
  record->domain = range.domain;
  record->category = range.category;
  record->payload_type = range.payload_type;
  record->depth = range.depth;
  Ring::Commit(record, RecordType::kRange, sizeof(RangeRecord), flags);
}

// Where in the thread's stack `range` stands.
void Place(const ThreadState& state, OpenRange* range) {
  range->depth = static_cast<uint32_t>(state.depth);
  if (state.depth != 0) range->parent_id = state.ranges[state.depth - 1].id;
}

// A range that is not recorded, so that its pop ends no other. Ranges in it have its parent.
int PushHidden(nvtxDomainHandle_t domain, ThreadState* state, OpenRange* range) {
  *range = OpenRange{};
  range->handle = domain;
  range->hidden = true;
  Place(*state, range);
  range->id = range->parent_id;
  return static_cast<int>(state->depth++);
}

int Push(nvtxDomainHandle_t domain, const Message& message) {
  const bool enabled = Enabled();
  if (g_sink.ring == nullptr) return 0;
  ThreadState* state = State();
  if (state == nullptr) return 0;
  const size_t depth = state->depth;
  if (depth >= kMaxOpenRanges) return static_cast<int>(depth + state->beyond++);
  if (depth == state->ranges.size()) Deepen(&state->ranges);
  OpenRange* range = &state->ranges[depth];
  if (!enabled) return PushHidden(domain, state, range);
  Begin(domain, message, state, range);
  Place(*state, range);
  state->depth = depth + 1;
  if (range->is_step && g_sink.steps != nullptr) {
    g_sink.steps->StepBegins(state->thread_id);
    range = &state->ranges[depth];  // should what it calls have ranges of its own
  }
  range->start_ns = NowNs();  // last, so that our own work lies outside the range
  return static_cast<int>(depth);
}

int Pop(nvtxDomainHandle_t domain) {
  const uint64_t end_ns = NowNs();
  if (g_sink.ring == nullptr) return 0;
  ThreadState* state = State();
  if (state == nullptr) return -1;
  if (state->beyond != 0) return static_cast<int>(state->depth + --state->beyond);
  // NVTX keeps a stack a domain; ours is one a thread, so look for the domain's last.
  OpenRange* const first = state->ranges.data();
  OpenRange* top = first + state->depth;
  do {
    if (top == first) return -1;  // without its push: for instance from before the agent was on
    --top;
  } while (top->handle != domain);
  if (!top->hidden) Emit(*top, state->thread_id, end_ns);
  const auto depth = static_cast<int>(top->depth);
  const bool is_step = top->is_step && g_sink.steps != nullptr;
  const uint32_t name = top->name;
  const uint64_t start_ns = top->start_ns;
  std::move(top + 1, first + state->depth, top);
  --state->depth;
  if (is_step) g_sink.steps->StepEnds(state->thread_id, name, start_ns, end_ns);
  return depth;
}

nvtxRangeId_t Start(nvtxDomainHandle_t domain, const Message& message) {
  if (!Enabled()) return 0;
  ThreadState* state = State();
  if (state == nullptr) return 0;
  StartedRange started;
  started.thread_id = state->thread_id;
  OpenRange& range = started.range;
  Begin(domain, message, state, &range);
  range.is_step = false;  // it may end on another thread, so it cannot bound a window
  range.start_ns = NowNs();
  std::lock_guard<std::mutex> lock(g_started_mutex);
  if (g_started.size() >= kMaxOpenRanges) return 0;
  g_started.emplace(range.id, started);
  return range.id;
}

void End(nvtxRangeId_t id) {
  const uint64_t end_ns = NowNs();
  if (g_sink.ring == nullptr) return;
  StartedRange started;
  {
    std::lock_guard<std::mutex> lock(g_started_mutex);
    const auto found = g_started.find(id);
    if (found == g_started.end()) return;
    started = found->second;
    g_started.erase(found);
  }
  Emit(started.range, started.thread_id, end_ns, kStartEnd);
}

void Mark(nvtxDomainHandle_t domain, const Message& message) {
  if (!Enabled()) return;
  ThreadState* state = State();
  if (state == nullptr) return;
  OpenRange range;
  Begin(domain, message, state, &range);
  Place(*state, &range);
  range.start_ns = NowNs();
  Emit(range, state->thread_id, range.start_ns);
}

template <typename Handle>
Handle Keep(std::string text) {
  return reinterpret_cast<Handle>(new Text{std::move(text)});
}

// The functions NVTX calls, by their numbers in nvtxDetail/nvtxTypes.h.
void DomainMarkEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t* a) {
  std::string narrow;
  Mark(d, Read(a, &narrow));
}
nvtxRangeId_t DomainRangeStartEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t* a) {
  std::string narrow;
  return Start(d, Read(a, &narrow));
}
int DomainRangePushEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t* a) {
  std::string narrow;
  return Push(d, Read(a, &narrow));
}
void DomainRangeEnd(nvtxDomainHandle_t, nvtxRangeId_t id) { End(id); }
int DomainRangePop(nvtxDomainHandle_t d) { return Pop(d); }
void MarkEx(const nvtxEventAttributes_t* a) { DomainMarkEx(nullptr, a); }
void MarkA(const char* m) { Mark(nullptr, Plain(m)); }
void MarkW(const wchar_t* m) { Mark(nullptr, Plain(Narrow(m).c_str())); }
nvtxRangeId_t RangeStartEx(const nvtxEventAttributes_t* a) { return DomainRangeStartEx(nullptr, a); }
nvtxRangeId_t RangeStartA(const char* m) { return Start(nullptr, Plain(m)); }
nvtxRangeId_t RangeStartW(const wchar_t* m) { return Start(nullptr, Plain(Narrow(m).c_str())); }
void RangeEnd(nvtxRangeId_t id) { End(id); }
int RangePushEx(const nvtxEventAttributes_t* a) { return DomainRangePushEx(nullptr, a); }
int RangePushA(const char* m) { return Push(nullptr, Plain(m)); }
int RangePushW(const wchar_t* m) { return Push(nullptr, Plain(Narrow(m).c_str())); }
int RangePop() { return Pop(nullptr); }
nvtxStringHandle_t DomainRegisterStringA(nvtxDomainHandle_t, const char* text) {
  return Keep<nvtxStringHandle_t>(text == nullptr ? "" : text);
}
nvtxStringHandle_t DomainRegisterStringW(nvtxDomainHandle_t, const wchar_t* text) {
  return Keep<nvtxStringHandle_t>(Narrow(text));
}
nvtxDomainHandle_t DomainCreateA(const char* name) {
  return Keep<nvtxDomainHandle_t>(name == nullptr ? "" : name);
}
nvtxDomainHandle_t DomainCreateW(const wchar_t* name) {
  return Keep<nvtxDomainHandle_t>(Narrow(name));
}

struct Slot {
  NvtxCallbackModule module;
  unsigned int index;
  NvtxFunctionPointer function;
};

template <typename Function>
NvtxFunctionPointer Generic(Function* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

const Slot kSlots[] = {
    {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_MarkEx, Generic(&MarkEx)},
    {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_MarkA, Generic(&MarkA)},
    {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_MarkW, Generic(&MarkW)},
    {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangeStartEx, Generic(&RangeStartEx)},
    {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangeStartA, Generic(&RangeStartA)},
    {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangeStartW, Generic(&RangeStartW)},
    {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangeEnd, Generic(&RangeEnd)},
    {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePushEx, Generic(&RangePushEx)},
    {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePushA, Generic(&RangePushA)},
    {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePushW, Generic(&RangePushW)},
    {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePop, Generic(&RangePop)},
    {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainMarkEx, Generic(&DomainMarkEx)},
    {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRangeStartEx, Generic(&DomainRangeStartEx)},
    {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRangeEnd, Generic(&DomainRangeEnd)},
    {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRangePushEx, Generic(&DomainRangePushEx)},
    {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRangePop, Generic(&DomainRangePop)},
    {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRegisterStringA, Generic(&DomainRegisterStringA)},
    {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRegisterStringW, Generic(&DomainRegisterStringW)},
    {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainCreateA, Generic(&DomainCreateA)},
    {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainCreateW, Generic(&DomainCreateW)},
};

bool Install(const NvtxExportTableCallbacks* table, const Slot& slot) {
  NvtxFunctionTable functions = nullptr;
  unsigned int size = 0;
  if (!table->GetModuleFunctionTable(slot.module, &functions, &size) || slot.index >= size)
    return false;
  if (functions[slot.index] != nullptr) *functions[slot.index] = slot.function;
  return true;
}

}  // namespace

void SetNvtxSink(const NvtxSink& sink) { g_sink = sink; }

void ForgetOpenRanges() {
  g_generation.fetch_add(1, std::memory_order_relaxed);
  // The lock may be held by a thread that the fork did not copy; start with a fresh table.
  new (&g_started_mutex) std::mutex;
  g_started.clear();
}

}  // namespace spanlite

int InitializeInjectionNvtx2(const void* (*get_export_table)(uint32_t)) {
  spanlite::StartAgent();
  if (get_export_table == nullptr) return 0;
  const auto* table =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  if (table == nullptr || table->struct_size < sizeof(*table)) return 0;
  for (const auto& slot : spanlite::kSlots) spanlite::Install(table, slot);
  return 1;
}
