// Preloaded into a process that may crash: says on stderr where each of its threads was.
//   g++ -O1 -shared -fPIC -o crash_trace.so crash_trace.cpp; LD_PRELOAD=$PWD/crash_trace.so PROGRAM
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dirent.h>
#include <execinfo.h>
#include <initializer_list>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr int kFrames = 64, kAsk = SIGURG;
constexpr useconds_t kPatienceUs = 20'000;

pid_t Thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

void Trace(const char* what, const void* address) {
  void* frames[kFrames];
  char text[160];
  const int length = std::snprintf(text, sizeof text, "\ncrash_trace: %s process %d thread %d address %p\n",
                                   what, getpid(), Thread(), address);
  (void)!write(STDERR_FILENO, text, static_cast<size_t>(length));
  backtrace_symbols_fd(frames, backtrace(frames, kFrames), STDERR_FILENO);
}

void OnAsk(int) { Trace("another", nullptr); }

void OnCrash(int number, siginfo_t* info, void*) {
  signal(number, SIG_DFL);
  Trace(number == SIGSEGV ? "SIGSEGV" : number == SIGABRT ? "SIGABRT" : "SIGBUS", info->si_addr);
  DIR* folder = opendir("/proc/self/task");
  while (const dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
    const int thread = std::atoi(entry->d_name);
    if (thread == 0 || thread == Thread()) continue;
    syscall(SYS_tgkill, getpid(), thread, kAsk);
    usleep(kPatienceUs);  // one after the other
  }
  raise(number);
}

__attribute__((constructor)) void Begin() {
  void* warm[2];
  backtrace(warm, 2);  // loads what it needs now
  struct sigaction crash {};
  crash.sa_sigaction = OnCrash;
  crash.sa_flags = SA_SIGINFO;
  for (const int number : {SIGSEGV, SIGABRT, SIGBUS}) sigaction(number, &crash, nullptr);
  struct sigaction ask {};
  ask.sa_handler = OnAsk;
  sigaction(kAsk, &ask, nullptr);
}

}  // namespace
