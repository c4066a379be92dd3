// Entry points: how the library gets into a process and out of it again.
//
// CUDA calls `InitializeInjection` (CUDA_INJECTION64_PATH), NVTX calls
// `InitializeInjectionNvtx2` (NVTX_INJECTION64_PATH); whichever comes first starts the agent.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <pthread.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "config.h"
#include "nvtx.h"
#include "ring.h"
#include "session.h"
#include "string_table.h"

namespace spanlite {
namespace {

constexpr const char* kVersion = "0.1.0";

// Never deleted: the application's threads may call into it until the very end.
struct Agent {
  Config config;
  Ring* ring = nullptr;
  Strings* strings = nullptr;
  Session* session = nullptr;
};

std::once_flag g_once;
Agent* g_agent = nullptr;

// Field 22 of /proc/self/stat, in clock ticks since boot.
uint64_t ProcessStartTicks() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return 0;
  size_t at = after_name + 1;
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

bool MakeDirectory(const std::string& path) {
  return mkdir(path.c_str(), 0755) == 0 || errno == EEXIST;
}

void Describe(Header* header) {
  header->process_start_ticks = ProcessStartTicks();
  header->created_ns = NowNs();
  const ssize_t length = readlink("/proc/self/exe", header->executable, sizeof header->executable - 1);
  header->executable[length > 0 ? length : 0] = '\0';
  std::strncpy(header->agent_version, kVersion, sizeof header->agent_version - 1);
}

void Launch() {
  Agent* agent = g_agent;
  const std::string& folder = agent->config.directory;
  const std::string path = folder + "/" + std::to_string(getpid()) + ".ring";
  agent->ring = MakeDirectory(folder) ? Ring::Create(path, agent->config.ring_bytes) : nullptr;
  if (agent->ring == nullptr) {
    std::fprintf(stderr, "spanlite agent: off: cannot make %s: %s\n", path.c_str(),
                 std::strerror(errno));
    SetNvtxSink(NvtxSink{});
    return;
  }
  Describe(agent->ring->header());
  agent->strings = new Strings(agent->ring);
  agent->session = new Session(agent->config, agent->ring, agent->strings);
  SetNvtxSink({agent->ring, agent->strings, agent->session, &agent->config});
}

// The child gets a ring of its own. It must not touch the parent's, whose only consumer
// would count the child's spans to the parent.
void InChildAfterFork() {
  if (g_agent == nullptr || g_agent->ring == nullptr) return;
  SetNvtxSink(NvtxSink{});
  ForgetOpenRanges();
  g_agent->session->AbandonAfterFork();
  Launch();
}

void AtExit() {
  if (g_agent != nullptr && g_agent->session != nullptr) g_agent->session->Shutdown();
}

}  // namespace

void StartAgent() {
  std::call_once(g_once, [] {
    auto* agent = new Agent;
    agent->config = Config::FromEnvironment();
    g_agent = agent;
    if (agent->config.level == Level::kOff) return;
    Launch();
    pthread_atfork(nullptr, nullptr, &InChildAfterFork);
    std::atexit(&AtExit);
  });
}

}  // namespace spanlite

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  spanlite::StartAgent();
  return 1;
}
