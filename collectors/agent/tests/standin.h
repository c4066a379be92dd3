// The stand-in device: what the tests launch work on, and what the stand-in CUPTI watches.
// A stream runs its work in order; a launch returns at once.
#pragma once

#include <cstdint>

struct StandinWork {
  // kGraph: a graph's launch as a whole, told after its nodes.
  enum Kind { kKernel, kMemcpy, kMemset, kGraph } kind;
  const char* name;  // of a kernel
  uint32_t device, context, stream, correlation_id, graph_id;
  uint64_t graph_node_id, start_ns, end_ns, bytes;
};

struct StandinCall {
  enum Kind { kLaunch, kGraphLaunch, kMemcpy, kMemset, kSynchronize, kQuery, kWaitEvent } kind;
  uint32_t thread_id, correlation_id;
  uint64_t start_ns, end_ns;
  uint32_t result;  // 0, or what a query of work that still runs says
};

struct StandinHooks {
  void (*work)(const StandinWork&);
  void (*call)(const StandinCall&);
  // At a call's begin and end, on its thread.
  void (*site)(StandinCall::Kind, bool begin);
};

extern "C" {
// The stand-in CUPTI sets these; null: nobody watches.
void standin_watch(const StandinHooks* hooks);
// Makes a context on a device current on this thread; its number, from 1.
uint32_t standin_context(uint32_t device);
// Whether any thread has made one.
bool standin_has_context();
void standin_launch(uint32_t stream, const char* name, uint64_t duration_ns);
void standin_memcpy(uint32_t stream, uint64_t bytes, uint64_t duration_ns);
// Whether all work has ended.
bool standin_query();
// A stream waits for an event. With STANDIN_CIRCLE=1 this and a graph's launch take two locks in
// opposite orders, as the real ones do while CUPTI records; one that waits for ever ends the process.
void standin_wait_event();
void standin_memset(uint32_t stream, uint64_t bytes, uint64_t duration_ns);
// A graph of so many kernels; its number, from 1.
uint32_t standin_graph(uint32_t nodes);
void standin_graph_launch(uint32_t graph, uint32_t stream, uint64_t node_ns);
uint32_t standin_graphs();
// Work that has not ended.
bool standin_busy();
// While CUPTI detaches, which takes a moment, a call ends the process.
void standin_detaching(bool now);
// Whether a thread other than the caller has made calls in the last 50 ms.
bool standin_others_call();
}
