#include "nvtx.h"

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

namespace spanlite {
namespace {

NvtxSink g_sink;
// A program that opens ranges and never ends them must not eat the host's memory.
constexpr size_t kMaxOpenRanges = 100'000;
std::atomic<uint64_t> g_next_range{1};
// Changes at fork, so that stacks made before it are thrown away by their owners.
std::atomic<uint32_t> g_generation{0};

// NVTX hands these back as opaque handles. They live as long as the process, as NVTX's
// own strings and domains do.
struct Text {
  std::string text;
};

struct OpenRange {
  uint64_t start_ns, id, parent_id, payload;
  uint32_t name, domain, category, payload_type, depth, thread_id;
  bool is_step;
  nvtxDomainHandle_t handle;
};

struct ThreadStack {
  std::vector<OpenRange> open;
  uint32_t thread_id = 0;
  uint32_t generation = 0;
};

ThreadStack& Stack() {
  thread_local ThreadStack stack;
  const uint32_t generation = g_generation.load(std::memory_order_relaxed);
  if (stack.thread_id == 0 || stack.generation != generation) {
    stack.open.clear();
    stack.thread_id = static_cast<uint32_t>(syscall(SYS_gettid));
    stack.generation = generation;
  }
  return stack;
}

// Ranges that start on one thread and may end on another.
std::mutex g_started_mutex;
std::unordered_map<uint64_t, OpenRange> g_started;

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
  std::string owned;
  std::string_view text;
  uint64_t payload = 0;
  uint32_t payload_type = 0, category = 0;
};

Message Read(const nvtxEventAttributes_t* attributes) {
  Message message;
  if (attributes == nullptr) return message;
  message.category = attributes->category;
  message.payload_type = static_cast<uint32_t>(attributes->payloadType);
  if (attributes->payloadType != NVTX_PAYLOAD_UNKNOWN)
    std::memcpy(&message.payload, &attributes->payload, sizeof message.payload);
  switch (attributes->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII:
      if (attributes->message.ascii != nullptr) message.text = attributes->message.ascii;
      break;
    case NVTX_MESSAGE_TYPE_UNICODE:
      message.owned = Narrow(attributes->message.unicode);
      message.text = message.owned;
      break;
    case NVTX_MESSAGE_TYPE_REGISTERED:
      if (attributes->message.registered != nullptr)
        message.text = reinterpret_cast<const Text*>(attributes->message.registered)->text;
      break;
    default:
      break;
  }
  return message;
}

bool IsStep(std::string_view name) {
  for (const std::string& prefix : g_sink.config->step_ranges)
    if (name.substr(0, prefix.size()) == prefix) return true;
  return false;
}

uint32_t DomainName(nvtxDomainHandle_t domain) {
  return domain == nullptr ? 0
                           : g_sink.strings->Intern(reinterpret_cast<const Text*>(domain)->text);
}

OpenRange Begin(nvtxDomainHandle_t domain, const Message& message, uint32_t thread_id) {
  OpenRange range{};
  range.id = g_next_range.fetch_add(1, std::memory_order_relaxed);
  range.handle = domain;
  range.payload = message.payload;
  range.payload_type = message.payload_type;
  range.category = message.category;
  range.thread_id = thread_id;
  range.is_step = IsStep(message.text);
  range.name = g_sink.strings->Intern(message.text);
  range.domain = DomainName(domain);
  return range;
}

void Emit(const OpenRange& range, uint64_t end_ns, uint16_t flags = 0) {
  RangeRecord record{};
  record.start_ns = range.start_ns;
  record.end_ns = end_ns;
  record.id = range.id;
  record.parent_id = range.parent_id;
  record.payload = range.payload;
  record.payload_type = range.payload_type;
  record.thread_id = range.thread_id;
  record.name = range.name;
  record.domain = range.domain;
  record.category = range.category;
  record.depth = range.depth;
  g_sink.ring->Write(record, RecordType::kRange, flags);
}

int Push(nvtxDomainHandle_t domain, const Message& message) {
  if (!Enabled()) return 0;
  ThreadStack& stack = Stack();
  if (stack.open.size() >= kMaxOpenRanges) return 0;
  OpenRange range = Begin(domain, message, stack.thread_id);
  range.parent_id = stack.open.empty() ? 0 : stack.open.back().id;
  range.depth = static_cast<uint32_t>(stack.open.size());
  if (range.is_step && g_sink.steps != nullptr) g_sink.steps->StepBegins(stack.thread_id);
  range.start_ns = NowNs();  // last, so that our own work lies outside the range
  stack.open.push_back(range);
  return static_cast<int>(range.depth);
}

int Pop(nvtxDomainHandle_t domain) {
  const uint64_t end_ns = NowNs();
  if (g_sink.ring == nullptr) return 0;
  ThreadStack& stack = Stack();
  // NVTX keeps a stack a domain; ours is one a thread, so look for the domain's last.
  for (size_t i = stack.open.size(); i-- > 0;) {
    if (stack.open[i].handle != domain) continue;
    const OpenRange range = stack.open[i];
    stack.open.erase(stack.open.begin() + static_cast<std::ptrdiff_t>(i));
    Emit(range, end_ns);
    if (range.is_step && g_sink.steps != nullptr)
      g_sink.steps->StepEnds(range.thread_id, range.name, range.start_ns, end_ns);
    return static_cast<int>(range.depth);
  }
  return -1;  // a pop without its push, for instance one from before the agent was on
}

nvtxRangeId_t Start(nvtxDomainHandle_t domain, const Message& message) {
  if (!Enabled()) return 0;
  ThreadStack& stack = Stack();
  OpenRange range = Begin(domain, message, stack.thread_id);
  range.is_step = false;  // it may end on another thread, so it cannot bound a window
  range.start_ns = NowNs();
  std::lock_guard<std::mutex> lock(g_started_mutex);
  if (g_started.size() >= kMaxOpenRanges) return 0;
  g_started.emplace(range.id, range);
  return range.id;
}

void End(nvtxRangeId_t id) {
  const uint64_t end_ns = NowNs();
  if (g_sink.ring == nullptr) return;
  OpenRange range;
  {
    std::lock_guard<std::mutex> lock(g_started_mutex);
    const auto found = g_started.find(id);
    if (found == g_started.end()) return;
    range = found->second;
    g_started.erase(found);
  }
  Emit(range, end_ns, kStartEnd);
}

void Mark(nvtxDomainHandle_t domain, const Message& message) {
  if (!Enabled()) return;
  ThreadStack& stack = Stack();
  OpenRange range = Begin(domain, message, stack.thread_id);
  range.parent_id = stack.open.empty() ? 0 : stack.open.back().id;
  range.depth = static_cast<uint32_t>(stack.open.size());
  range.start_ns = NowNs();
  Emit(range, range.start_ns);
}

Message Plain(const char* text) {
  Message message;
  if (text != nullptr) message.text = text;
  return message;
}

Message Wide(const wchar_t* text) {
  Message message;
  message.owned = Narrow(text);
  message.text = message.owned;
  return message;
}

template <typename Handle>
Handle Keep(std::string text) {
  return reinterpret_cast<Handle>(new Text{std::move(text)});
}

// The functions NVTX calls, by their numbers in nvtxDetail/nvtxTypes.h.
void MarkEx(const nvtxEventAttributes_t* a) { Mark(nullptr, Read(a)); }
void MarkA(const char* m) { Mark(nullptr, Plain(m)); }
void MarkW(const wchar_t* m) { Mark(nullptr, Wide(m)); }
nvtxRangeId_t RangeStartEx(const nvtxEventAttributes_t* a) { return Start(nullptr, Read(a)); }
nvtxRangeId_t RangeStartA(const char* m) { return Start(nullptr, Plain(m)); }
nvtxRangeId_t RangeStartW(const wchar_t* m) { return Start(nullptr, Wide(m)); }
void RangeEnd(nvtxRangeId_t id) { End(id); }
int RangePushEx(const nvtxEventAttributes_t* a) { return Push(nullptr, Read(a)); }
int RangePushA(const char* m) { return Push(nullptr, Plain(m)); }
int RangePushW(const wchar_t* m) { return Push(nullptr, Wide(m)); }
int RangePop() { return Pop(nullptr); }
void DomainMarkEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t* a) { Mark(d, Read(a)); }
nvtxRangeId_t DomainRangeStartEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t* a) {
  return Start(d, Read(a));
}
void DomainRangeEnd(nvtxDomainHandle_t, nvtxRangeId_t id) { End(id); }
int DomainRangePushEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t* a) {
  return Push(d, Read(a));
}
int DomainRangePop(nvtxDomainHandle_t d) { return Pop(d); }
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
