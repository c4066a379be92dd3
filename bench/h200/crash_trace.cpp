// Preloaded into a process that may crash: says on stderr where each of its threads was.
//   g++ -O1 -shared -fPIC -o crash_trace.so crash_trace.cpp; LD_PRELOAD=$PWD/crash_trace.so PROGRAM
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dirent.h>
#include <execinfo.h>
#include <initializer_list>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

constexpr int kFrames = 64, kAsk = SIGURG;
constexpr useconds_t kPatienceUs = 20'000;

pid_t Thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

template <typename... Values>
void Say(const char* format, Values... values) {
  char text[160];
  const int length = std::snprintf(text, sizeof text, format, values...);
  (void)!write(STDERR_FILENO, text, static_cast<size_t>(length));
}

void Trace(const char* what, const void* address) {
  void* frames[kFrames];
  Say("\ncrash_trace: %s process %d thread %d address %p\n", what, getpid(), Thread(), address);
  backtrace_symbols_fd(frames, backtrace(frames, kFrames), STDERR_FILENO);
}

// What lies at an address, which need not exist.
bool Read(greg_t address, void* target, size_t bytes) {
  const iovec here{target, bytes};
  const iovec there{reinterpret_cast<void*>(address), bytes};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
}

// A thread that waits for a lock of glibc's has the lock's address in the futex call's first
// argument: the words around it name the owner (of a mutex the third word, of a rwlock the seventh
// from its start, which is two or three words before).
void Lock(const void* context) {
  const greg_t* registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  unsigned char call[2];
  if (!Read(registers[REG_RIP] - 2, call, sizeof call) || call[0] != 0x0f || call[1] != 0x05)
    return;  // not in a system call
  int words[12];
  if (!Read(registers[REG_RDI] - 3 * static_cast<greg_t>(sizeof(int)), words, sizeof words)) return;
  Say("lock %#llx words from -3:", registers[REG_RDI]);
  for (const int word : words) Say(" %d", word);
  Say("\n");
}

void OnAsk(int, siginfo_t*, void* context) {
  Trace("another", nullptr);
  Lock(context);
}

void OnCrash(int number, siginfo_t* info, void* context) {
  signal(number, SIG_DFL);
  Trace(number == SIGSEGV ? "SIGSEGV" : number == SIGABRT ? "SIGABRT" : "SIGBUS", info->si_addr);
  Lock(context);
  DIR* folder = opendir("/proc/self/task");
  while (const dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
    const int thread = std::atoi(entry->d_name);
    if (thread == 0 || thread == Thread()) continue;
    Say("\nasked thread %d\n", thread);  // one that holds off signals says nothing itself
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
  ask.sa_sigaction = OnAsk;
  ask.sa_flags = SA_SIGINFO;
  sigaction(kAsk, &ask, nullptr);
}

}  // namespace
