// Entry points: how the library gets into a process and out of it again.
//
// CUDA calls `InitializeInjection` (CUDA_INJECTION64_PATH), NVTX calls
// `InitializeInjectionNvtx2` (NVTX_INJECTION64_PATH); whichever comes first starts the agent.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <new>
#include <pthread.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "config.h"
#include "cupti_api.h"
#include "leftovers.h"
#include "nvtx.h"
#include "ring.h"
#include "session.h"
#include "string_table.h"

namespace spanlite {
namespace {

constexpr const char* kVersion = "0.1.0";
// Rings of dead processes to keep for a daemon that may come yet.
constexpr size_t kKeptRings = 16;

// Never deleted: the application's threads may call into it until the very end.
struct Agent {
  Config config;
  Ring* ring = nullptr;
  Strings* strings = nullptr;
  Session* session = nullptr;
};

std::mutex g_launch_mutex;
std::atomic<bool> g_launched{false};
Agent* g_agent = nullptr;
// CUDA has been begun here, by this process or the one that it was forked from.
std::atomic<bool> g_cuda_begun{false};
const char* g_why_ranges_only = "";

// Field 22 of /proc/self/stat, in clock ticks since boot.
uint64_t ProcessStartTicks() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return 0;
  size_t at = after_name + 1;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

void Describe(Header* header) {
  header->process_start_ticks = ProcessStartTicks();
  header->created_ns = NowNs();
  const ssize_t length = readlink("/proc/self/exe", header->executable, sizeof header->executable - 1);
  header->executable[length > 0 ? length : 0] = '\0';
  std::strncpy(header->agent_version, kVersion, sizeof header->agent_version - 1);
}

// Where every process of the host, whoever runs it, may put its ring.
bool MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0) return errno == EEXIST;
  return chmod(path.c_str(), 01777) == 0;
}

void Launch() {
  Agent* agent = g_agent;
  const std::string& folder = agent->config.directory;
  // The time makes it unique: a pid comes again, and survives exec.
  const std::string path =
      folder + "/" + std::to_string(getpid()) + "-" + std::to_string(NowNs()) + ".ring";
  const Losses losses = RemoveOldRings(folder, kKeptRings);
  const auto describe = [agent](Header* header) {
    Describe(header);
    Session::SetDefaults(agent->config, header);
  };
  agent->ring =
      MakeDirectory(folder) ? Ring::Create(path, agent->config.ring_bytes, describe) : nullptr;
  if (agent->ring == nullptr) {
    std::fprintf(stderr, "spanlite agent: off: cannot make %s: %s\n", path.c_str(),
                 std::strerror(errno));
    return;
  }
  for (size_t reason = 0; reason < losses.size(); ++reason)
    agent->ring->CountDrop(static_cast<Drop>(reason), losses[reason]);
  agent->strings = new Strings(agent->ring);
  agent->session = new Session(agent->config, agent->ring, agent->strings, g_why_ranges_only);
  SetNvtxSink({agent->ring, agent->strings, agent->session, &agent->config});
}

// The child gets a ring of its own, made when it first has something to say: most children
// only exec. It must not touch the parent's, whose only consumer would count the child's spans
// to the parent. What the parent's agent owned stays unused, as its locks may be held. CUDA does not
// work in the child of a process that uses it, and CUPTI waits for threads that no fork copies.
void InChildAfterFork() {
  if (g_cuda_begun.load() || CuptiApi::Loaded()) {
    g_agent->config.level = std::min(g_agent->config.level, Level::kRanges);
    g_why_ranges_only = "forked from a process that uses CUDA, which does not work here";
  }
  if (g_agent->ring != nullptr) g_agent->ring->ReleaseLock();
  SetNvtxSink(NvtxSink{});
  ForgetOpenRanges();
  g_agent->ring = nullptr;
  g_agent->session = nullptr;
  new (&g_launch_mutex) std::mutex;
  g_launched.store(false);
}

}  // namespace

void StopAgent() {
  if (g_launched.load() && g_agent->session != nullptr) g_agent->session->Shutdown();
}

void StartAgent() {
  if (g_launched.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> lock(g_launch_mutex);
  if (g_launched.load(std::memory_order_relaxed)) return;
  if (g_agent == nullptr) {
    g_agent = new Agent;
    g_agent->config = Config::FromEnvironment();
    if (g_agent->config.level != Level::kOff) {
      pthread_atfork(nullptr, nullptr, &InChildAfterFork);
      std::atexit(&StopAgent);
    }
  }
  if (g_agent->config.level != Level::kOff) Launch();
  g_launched.store(true, std::memory_order_release);
}

}  // namespace spanlite

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  spanlite::g_cuda_begun.store(true);
  spanlite::StartAgent();
  if (spanlite::g_agent->session != nullptr) spanlite::g_agent->session->CudaBegins();
  return 1;
}
